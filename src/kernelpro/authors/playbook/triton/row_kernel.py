"""Triton kernels for rows with loops of their own: a tile has several rows and a chunk of each.

A row that fits is kept in registers (`cache_row`). A longer row is read in chunks, once for each pass;
reductions that depend on each other share a pass where possible (online_reductions.py). If there are too few
rows to fill the GPU, several programs share a row (`split`). Each pass with reductions then becomes a kernel
whose programs store partial results; the next kernel combines them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import LoopVar, iterations, unflatten_loops, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.online_reductions import OnlineReduction, fuse_online
from kernelpro.authors.playbook.schedule.passes import (
    RowPass,
    loop_invariants,
    scans_of,
    split_into_passes,
)
from kernelpro.authors.playbook.triton.builder import TritonSourceBuilder, indented
from kernelpro.authors.playbook.triton.stage_kernel import StageKernel
from kernelpro.authors.playbook.triton.syntax import (
    accumulator_dtype,
    combine,
    compute_type,
    initial_value,
    scratch_dtype,
)
from kernelpro.authors.playbook.triton.tile_rows import UNNAMED_OPS, TileRows

MAX_TILE_ELEMENTS = 32768
"""Elements of a tile in registers: 32 for each of 1024 threads."""


class TritonRowKernel(StageKernel):
    """A program processes `coarsening` rows. With one row, the tile is 1-D and per-row values are scalars."""

    def __init__(self, builder: TritonSourceBuilder, stage: Stage, design: StageDesign, number: int):
        super().__init__(builder, stage, design, number)
        self._one_row = design.coarsening == 1 or stage.rows == 1
        self._rows = TileRows(self.printer, None if self._one_row else 1)
        self.row_shape = "[]" if self._one_row else "[ROWS, 1]"
        self._chunk_shape = "[CHUNK]" if self._one_row else "[ROWS, CHUNK]"
        self._passes = split_into_passes(stage)
        all_loops = list(dict.fromkeys(row_pass.loops for row_pass in self._passes if row_pass.loops))
        self._columns: dict[tuple[LoopVar, ...], LoopVar] = {}
        """For the loops of each pass, the tile's axis along the row."""
        for position, loops in enumerate(all_loops):
            column = LoopVar("cols" if len(all_loops) == 1 else f"cols{position}", iterations(loops))
            self._columns[loops] = column
            self.printer.loop_indices.update(unflatten_loops(loops, variable(column)))
        self._max_width = max((column.extent for column in self._columns.values()), default=1)
        self._in_registers = design.cache_row and row_fits_registers(stage)
        self._online: dict[str, OnlineReduction] = {}
        if not self._in_registers:
            self._passes, self._online = fuse_online(self._passes)
        whole_row = self._in_registers or scans_of(step.value for step in stage.steps)
        self._split = 1 if whole_row else power_of_two(design.split)

    def write(self) -> None:
        """Add one kernel; if several programs share a row, also one for each pass with reductions."""
        self._declare_constants()
        names: Names = {}
        if self._split == 1:
            body = [line for row_pass in self._passes for line in self._emit_pass(row_pass, names)]
            self._add_last_kernel([*body, *self.accumulate_totals(names)], split=False)
            return
        stored: list[RowPass] = []
        for position, row_pass in enumerate(self._passes):
            if row_pass.loops and row_pass.reductions:
                pass_names: Names = {}
                body = [*self._load_partials(stored, pass_names), *self._emit_pass(row_pass, pass_names)]
                self._add_partial_kernel(position, [*body, *self._store_partials(row_pass)])
                stored.append(row_pass)
        rest = [p for p in self._passes if p not in stored and not (p.reductions and not p.loops)]
        split = any(row_pass.loops for row_pass in rest)
        body = self._load_partials(stored, names)
        body += [line for row_pass in rest for line in self._emit_pass(row_pass, names)]
        body += self.accumulate_totals(names, "(part == 0)" if split else "")
        self._add_last_kernel(body, split)

    # --- constants and kernels --------------------------------------------------------------------

    def _declare_constants(self) -> None:
        """Declare the tunables, and the masks that some of their values require."""
        number, design, builder = self.number, self.design, self.builder
        threads = builder.tune_threads(number, design.threads)
        self._constants: dict[str, str] = {}
        rows: Sequence[int] = [1]
        if not self._one_row:
            maximum = power_of_two(self.stage.rows)
            coarsening = min(design.coarsening, maximum)
            values = [r for r in (coarsening // 2, coarsening, coarsening * 2) if 1 < r <= maximum]
            values = [r for r in values if self._fits_registers(r)]
            self._constants["ROWS"] = builder.tunable(f"COARSENING{number}", coarsening, values)
            rows = builder.tunables[f"COARSENING{number}"][1]
        self._row_mask = self.mask_rows(rows)
        self._chunk_sizes: set[int] = set()
        if not self._in_registers and self._columns:
            maximum = power_of_two(self._max_width)
            vectors = builder.tune_vector_width(number, design.vector_width)
            self._chunk_sizes = {
                max(16, min(maximum, t * v // r)) for t in threads for v in vectors for r in rows
            }
            size = f"THREADS{number} * VECTOR_WIDTH{number}"
            size += "" if self._one_row else f" // COARSENING{number}"
            builder.derived_constants.append(f"CHUNK{number} = max(16, min({maximum}, {size}))")
            self._constants["CHUNK"] = f"CHUNK{number}"
        if self._split > 1:
            values = [s for s in (self._split // 2, self._split, self._split * 2) if s > 1]
            self._constants["SPLIT"] = builder.tunable(f"SPLIT{number}", self._split, values)
        for column in self._columns.values():
            if any(column.extent % length for length in self._lengths(column)):
                self.printer.masks[column] = f"{column.name}_mask"

    def _fits_registers(self, rows: int) -> bool:
        fits = rows * power_of_two(self._max_width) <= MAX_TILE_ELEMENTS
        return not self._in_registers or fits or rows == self.design.coarsening

    def _lengths(self, column: LoopVar) -> Sequence[int]:
        """Steps along the row for all values of the tunables: a chunk for each program that shares the row. A
        row whose length is a multiple of all of them needs no mask."""
        if self._in_registers:
            return [power_of_two(column.extent)]
        splits = self.builder.tunables[f"SPLIT{self.number}"][1] if self._split > 1 else [1]
        return [size * split for size in self._chunk_sizes for split in splits]

    def _header(self, split: bool) -> list[str]:
        """Lines that declare the tile's axes. `split`: several programs share a row."""
        block = "block // SPLIT" if split else "block"
        lines = [
            f"rows = {block}" if self._one_row else f"rows = {block} * ROWS + tl.arange(0, ROWS)[:, None]"
        ]
        lines += [*self._row_mask, *(["part = block % SPLIT"] if split else [])]
        for column in self._columns.values() if self._in_registers else ():
            lines += [f"{column.name} = {self._arange(power_of_two(column.extent))}"]
            lines += self._column_mask(column)
        return lines

    def _blocks(self, split: bool) -> str:
        rows = self.stage.rows
        blocks = str(rows) if self._one_row else f"-(-{rows} // {self._constants['ROWS']})"
        return f"{blocks} * {self._constants['SPLIT']}" if split else blocks

    def _add_partial_kernel(self, position: int, body: list[str]) -> None:
        """Add a kernel that stores partial results."""
        name, warps = f"stage{self.number}_part{position}", f"THREADS{self.number} // 32"
        body = [f"block = {self.builder.program_id()}", *self._header(split=True), *body]
        self.builder.add_kernel(name, body, self._constants, self._blocks(split=True), num_warps=warps)

    def _add_last_kernel(self, body: list[str], split: bool) -> None:
        """Add the kernel that computes the outputs and the totals."""
        blocks = self._blocks(split)
        body, grid = self.loop_over_blocks(blocks, [*self._header(split), *body])
        self.launch(f"stage{self.number}", body, self._constants, blocks, grid)

    def _arange(self, length: int | str) -> str:
        """Offsets along the tile's axis along the row."""
        return f"tl.arange(0, {length})" if self._one_row else f"tl.arange(0, {length})[None, :]"

    def _column_mask(self, column: LoopVar) -> list[str]:
        mask = self.printer.masks.get(column)
        return [f"{mask} = {column.name} < {column.extent}"] if mask else []

    # --- passes -----------------------------------------------------------------------------------

    def _emit_pass(self, row_pass: RowPass, names: Names) -> list[str]:
        if not row_pass.loops:
            return self.emit_row_steps(row_pass, names)
        column = self._columns[row_pass.loops]
        if not self._in_registers:
            return self._emit_chunked_pass(row_pass, names, column)
        length = str(power_of_two(column.extent))
        lines = []
        for scan in scans_of(row_pass.roots):
            lines += self._emit_scan(scan, names, length)
        return lines + self._rows.statements(row_pass, names, column, length, self.emit_store)

    def _emit_scan(self, scan: Expr, names: Names, length: str, carry: str = "") -> list[str]:
        """Statements for the scan of the tile's elements, combined with the carry of earlier chunks."""
        kind, (arg,) = scan.data[0], scan.args
        lines = self.printer.statements([arg] if arg.op not in UNNAMED_OPS else [], names)
        operand = self.printer.reduce_operand(kind, arg, names)
        text = self._rows.broadcast(operand, arg, scan.data[1:], length)
        result = self.printer.scan(kind, text, 0 if self._one_row else 1)
        names[scan] = f"v{scan.number}"
        return [*lines, f"{names[scan]} = {combine(kind, carry, result) if carry else result}"]

    def _emit_chunked_pass(self, row_pass: RowPass, names: Names, column: LoopVar) -> list[str]:
        """A loop over the chunks of a row.

        Accumulators are tiles, reduced after the loop. Exceptions are an online maximum and the sums that are
        rescaled with it, which are per-row values. A mean and its centered sum are updated per lane
        (Welford).
        """
        reductions, scans = row_pass.reductions, scans_of(row_pass.roots)
        online = {step.name: self._online[step.name] for step in reductions if step.name in self._online}
        centered = {match.base.name: name for name, match in online.items() if match.kind == "centered"}
        rescaled = [step for step in reductions if step.name in online and step.name not in centered.values()]
        maxima = {match.base.name for match in online.values() if match.kind == "rescaled"}
        available = {**names, **dict.fromkeys((match.base_value for match in online.values()), "")}
        invariants = loop_invariants(row_pass.roots, set(row_pass.loops), available)
        lines = self.printer.statements(invariants, names)
        for step in reductions:
            shape = self.row_shape if step.name in maxima or step in rescaled else self._chunk_shape
            dtype = accumulator_dtype(step.kind, step.value)
            lines.append(f"{step.name} = {initial_value(step.kind, dtype, shape)}")
        for scan in scans:
            lines.append(f"carry{scan.number} = {initial_value(scan.data[0], scan.dtype, self.row_shape)}")
        inner_names = dict(names)
        body = [f"{column.name} = start + {self._arange('CHUNK')}", *self._column_mask(column)]
        for scan in scans:
            body += self._emit_chunk_scan(row_pass, scan, inner_names)
        steps = [s for s in row_pass.steps if isinstance(s, StoreStep) or s.name not in online]
        roots = [step.value for step in steps if step.value.op not in UNNAMED_OPS]
        body += self.printer.statements(roots, inner_names)
        for row_step in steps:
            if isinstance(row_step, StoreStep):
                body.append(self.emit_store(row_step, inner_names))
            elif row_step.name in centered:
                # Masked elements equal the mean, so they contribute nothing.
                masked_value = row_step.name
                text = self._rows.operand(row_pass, row_step, inner_names, column, "CHUNK", masked_value)
                body += self._update_welford(row_step, text, centered[row_step.name])
            else:
                text = self._rows.operand(row_pass, row_step, inner_names, column, "CHUNK")
                body += self._update_accumulator(row_step, text, row_step.name in maxima)
        for step in rescaled:
            body += self._rescale_sum(row_pass, step, inner_names)
        lines += self._chunk_loop(column, [*body, *(f"{name} = {name}_new" for name in sorted(maxima))])
        for mean, name in centered.items():
            lines += self._merge_welford(mean, name, online[name].base.value, column)
        reduced = {*maxima, *online, *centered}
        return lines + [
            f"{step.name} = {self._rows.reduce(step.kind, step.name, step.value)}"
            for step in reductions
            if step.name not in reduced
        ]

    def _emit_chunk_scan(self, row_pass: RowPass, scan: Expr, names: Names) -> list[str]:
        """Statements for the scan of a chunk, and for the carry to the next chunk."""
        kind, carry = scan.data[0], f"carry{scan.number}"
        lines = self._emit_scan(scan, names, "CHUNK", carry)
        step, column = ReduceStep("", kind, scan.args[0], row_pass.loops), self._columns[row_pass.loops]
        text = self._rows.operand(row_pass, step, names, column, "CHUNK")
        total = self._rows.reduce(kind, text, scan)
        return [*lines, f"{carry} = {combine(kind, carry, total)}"]

    def _update_accumulator(self, step: ReduceStep, text: str, is_maximum: bool) -> list[str]:
        """Statements that add a chunk to an accumulator. An online maximum of -inf is subtracted as 0."""
        name = step.name
        if not is_maximum:
            return [f"{name} = {combine(step.kind, name, text)}"]
        return [
            f"{name}_new = {combine(step.kind, name, self._rows.reduce('max', text, step.value))}",
            f'{name}_finite = tl.where({name}_new == float("-inf"), 0.0, {name}_new)',
        ]

    def _chunk_loop(self, column: LoopVar, body: list[str]) -> list[str]:
        """The loop over the chunks of a row, or of the program's part of it."""
        if self._split == 1:
            return [f"for start in range(0, {column.extent}, CHUNK):", *indented(body)]
        chunks = f"({column.extent} + CHUNK * SPLIT - 1) // (CHUNK * SPLIT)"
        start = f"start = part * {self._part_length(column)} + chunk * CHUNK"
        return [f"for chunk in range(0, {chunks}):", *indented([start, *body])]

    def _part_length(self, column: LoopVar) -> str:
        """The length of one program's part of a row, a multiple of the chunk."""
        return f"(({column.extent} + CHUNK * SPLIT - 1) // (CHUNK * SPLIT) * CHUNK)"

    # --- online reductions ------------------------------------------------------------------------

    def _rescale_sum(self, row_pass: RowPass, step: ReduceStep, names: Names) -> list[str]:
        """Statements that add a chunk to a sum that is rescaled when the maximum grows."""
        online = self._online[step.name]
        base = online.base.name
        inner_names = {**names, online.base_value: f"{base}_finite"}
        lines, column = self.printer.statements([step.value], inner_names), self._columns[row_pass.loops]
        text = self._rows.operand(row_pass, step, inner_names, column, "CHUNK")
        chunk = self._rows.reduce("sum", text, step.value)
        return [*lines, f"{step.name} = {step.name} * tl.exp({base} - {base}_finite) + {chunk}"]

    def _update_welford(self, step: ReduceStep, text: str, squares: str) -> list[str]:
        """Per-lane Welford update of a mean and the sum of squared deviations from it."""
        name, chunk = step.name, "start // CHUNK" if self._split == 1 else "chunk"
        one = f"tl.full([], 1.0, {compute_type(step.value.dtype)})"
        return [
            f"{name}_value = {text}",
            f"{name}_delta = {name}_value - {name}",
            f"{name} += {name}_delta * ({one} / ({chunk} + 1))",
            f"{squares} += {name}_delta * ({name}_value - {name})",
        ]

    def _merge_welford(self, mean: str, squares: str, value: Expr, column: LoopVar) -> list[str]:
        """Combine the lanes to the sum of all elements and the sum of squared deviations from their mean."""
        lines, count, divisor = [], str(column.extent), f"{column.extent}.0"
        if self._split > 1:
            length = self._part_length(column)
            count, divisor = f"{mean}_count", f"tl.maximum({mean}_count, 1)"
            lines += [f"{count} = tl.minimum(tl.maximum({column.extent} - part * {length}, 0), {length})"]
        lane_count = f"(tl.maximum({count} - {self._arange('CHUNK')}, 0) + CHUNK - 1) // CHUNK * 1.0"
        deviations = f"{squares} + {mean}_lane_count * {mean}_delta * {mean}_delta"
        return [
            *lines,
            f"{mean}_lane_count = {lane_count}",
            f"{mean}_sum = {self._rows.reduce('sum', f'{mean} * {mean}_lane_count', value)}",
            f"{mean}_delta = {mean} - {mean}_sum / {divisor}",
            f"{squares} = {self._rows.reduce('sum', deviations, value)}",
            f"{mean} = {mean}_sum",
        ]

    # --- rows that several programs share ---------------------------------------------------------

    def _store_partials(self, row_pass: RowPass) -> list[str]:
        """Statements that store the program's partial results of the pass's reductions."""
        lines, mask = [], self.printer.masks.get(self.row, "")
        for step in row_pass.reductions:
            name, count = f"partial_{step.name}", f"{self.stage.rows} * {self._constants['SPLIT']}"
            self.builder.add_scratch(name, count, scratch_dtype(step.kind, step.value))
            lines.append(self.printer.store_to(name, "rows * SPLIT + part", step.name, mask))
        return lines

    def _load_partials(self, stored: list[RowPass], names: Names) -> list[str]:
        """Statements that combine the partial results of earlier kernels, and compute reductions without
        loops."""
        lines = [f"parts = {self._arange('SPLIT')}"] if stored else []
        mask = self.printer.masks.get(self.row)
        arguments = f", mask={mask}, other=0" if mask else ""
        available: set[str] = set()
        for row_pass in self._passes:
            reductions = row_pass.reductions
            if not row_pass.loops and reductions and _depends_only_on(reductions, available):
                lines += self.emit_row_steps(RowPass((), [*reductions]), names)
            elif row_pass in stored:
                for step in reductions:
                    name = f"partial_{step.name}"
                    self.printer.pointers[name] = None
                    lines.append(f"{step.name}_parts = tl.load({name} + rows * SPLIT + parts{arguments})")
                    lines += self._combine_partials(step, self._columns[row_pass.loops])
            else:
                continue
            available |= {step.name for step in reductions}
        return lines

    def _combine_partials(self, step: ReduceStep, column: LoopVar) -> list[str]:
        online, name = self._online.get(step.name), step.name
        if online is None:
            return [f"{name} = {self._rows.reduce(step.kind, f'{name}_parts', step.value)}"]
        base = online.base.name
        if online.kind == "rescaled":
            rescaled = f"{name}_parts * tl.exp({base}_parts - {base}_finite)"
            return [
                f'{base}_finite = tl.where({base} == float("-inf"), 0.0, {base})',
                f"{name} = {self._rows.reduce('sum', rescaled, step.value)}",
            ]
        length = self._part_length(column)
        deviations = f"{name}_parts + {name}_count * {name}_delta * {name}_delta"
        return [
            f"{name}_count = tl.minimum(tl.maximum({column.extent} - parts * {length}, 0), {length}) * 1.0",
            f"{name}_delta = {base}_parts / tl.maximum({name}_count, 1.0) - {base} / {column.extent}.0",
            f"{name} = {self._rows.reduce('sum', deviations, step.value)}",
        ]


def row_fits_registers(stage: Stage) -> bool:
    """Whether a whole row fits into the registers of a program."""
    return all(power_of_two(iterations(step.loops)) <= MAX_TILE_ELEMENTS for step in stage.steps)


def _depends_only_on(reductions: list[ReduceStep], available: set[str]) -> bool:
    return all(node.data in available for step in reductions for node in nodes_of([step.value], "row"))
