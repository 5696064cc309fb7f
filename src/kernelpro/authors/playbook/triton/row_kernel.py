"""Stages in Triton whose rows have loops of their own: tiles of several rows and a stretch of each.

A row that fits lies in registers as a whole, and every step finds it there (`keep`). A longer one is gone over in
stretches, once for each pass; reductions that depend on each other share a pass where they can (online.py). Where there
are too few rows to fill a GPU, several programs share one (`split`): each pass that reduces becomes a kernel whose
programs leave their parts in memory, and whoever comes next joins them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule import online_reductions as online
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants, split_into_passes, scans_of
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.triton.syntax import initial_value, combine, compute_type, accumulator_dtype, identity, scratch_dtype
from kernelpro.authors.playbook.triton.stage_kernel import UNNAMED_OPS, TritonSourceBuilder, StageKernel, indented

MAX_TILE_ELEMENTS = 32768
"""Elements of a tile that registers hold: 32 for each of 1024 threads."""


class TritonRowKernel(StageKernel):
    """With one row at a time, the tile is the stretch alone, and what a row has is a plain number."""

    def __init__(self, kernels: TritonSourceBuilder, stage: Stage, how: StageDesign, place: int):
        super().__init__(kernels, stage, how, place)
        self._one_row = how.coarsening == 1 or stage.rows == 1
        self.row_shape = "[]" if self._one_row else "[ROWS, 1]"
        self._passes = split_into_passes(stage)
        self._widths = {one.loops: prod(var.extent for var in one.loops) for one in self._passes if one.loops}
        self._columns: dict[tuple[LoopVar, ...], LoopVar] = {}
        for loops, width in self._widths.items():
            column = LoopVar("cols" if len(self._widths) == 1 else f"cols{len(self._columns)}", width)
            self._columns[loops] = column
            self.printer.loop_indices.update(
                zip(loops, unflatten(variable(column), [v.extent for v in loops]), strict=True)
            )
        self._max_width = max(self._widths.values(), default=1)
        self._in_registers = how.cache_row and row_fits_registers(stage)
        self._followers: dict[str, online.OnlineReduction] = {}
        if not self._in_registers:
            self._passes, self._followers = online.fuse_online(self._passes)
        alone = self._in_registers or scans_of(step.value for step in stage.steps)
        self._split = 1 if alone else power_of_two(how.split)

    def write(self) -> None:
        self._declare_constants()
        if self._split == 1:
            names: Names = {}
            body = [line for one in self._passes for line in self._emit_pass(one, names)]
            self._add_kernel(f"stage{self.number}", body + self.accumulate_totals(names), shared=False, last=True)
            return
        done: list[RowPass] = []
        for number, one in enumerate(self._passes):
            if not one.loops or not _reduce_steps(one):
                continue
            names = {}
            body = [*self._load_partials(done, names), *self._emit_pass(one, names), *self._store_partials(one)]
            self._add_kernel(f"stage{self.number}_part{number}", body, shared=True, last=False)
            done.append(one)
        names, rest = (
            {},
            [one for one in self._passes if one not in done and not (_reduce_steps(one) and not one.loops)],
        )
        body = self._load_partials(done, names)
        shared = any(one.loops for one in rest)
        for one in rest:
            body += self._emit_pass(one, names)
        body += self.accumulate_totals(names, "(part == 0)" if shared else "")
        self._add_kernel(f"stage{self.number}", body, shared=shared, last=True)

    # --- the frame of a kernel ---------------------------------------------------------------------------------

    def _declare_constants(self) -> None:
        """What may be tuned, and the masks that follow from it."""
        place, how, kernels = self.number, self.design, self.builder
        threads = kernels.add_threads_tunable(place, how.threads)
        self._constants: dict[str, str] = {}
        rows: Sequence[int] = [1]
        if not self._one_row:
            together = min(how.coarsening, power_of_two(self.stage.rows))
            tried = [
                r for r in (together // 2, together, together * 2) if 1 < r <= power_of_two(self.stage.rows)
            ]
            self._constants["ROWS"] = kernels.tunable(
                f"COARSENING{place}", together, [r for r in tried if self._fits_registers(r)]
            )
            rows = kernels.tunables[f"COARSENING{place}"][1]
        self._mask = self.mask_rows(rows)
        self._chunk_sizes: set[int] = set()
        if not self._in_registers and self._widths:
            most = power_of_two(self._max_width)
            vectors = kernels.add_vector_tunable(place, how.vector_width)
            self._chunk_sizes = {max(16, min(most, t * v // r)) for t in threads for v in vectors for r in rows}
            each = f"THREADS{place} * VECTOR_WIDTH{place}" + ("" if self._one_row else f" // COARSENING{place}")
            kernels.derived_constants.append(f"STRETCH{place} = max(16, min({most}, {each}))")
            self._constants["STRETCH"] = f"STRETCH{place}"
        if self._split > 1:
            split = self._split
            self._constants["SPLIT"] = kernels.tunable(
                f"SPLIT{place}", split, [s for s in (split // 2, split, split * 2) if s > 1]
            )
        for column in self._columns.values():
            if any(column.extent % length for length in self._lengths(column)):
                self.printer.masks[column] = f"{column.name}_in"

    def _fits_registers(self, rows: int) -> bool:
        return not self._in_registers or rows * power_of_two(self._max_width) <= MAX_TILE_ELEMENTS or rows == self.design.coarsening

    def _lengths(self, column: LoopVar) -> Sequence[int]:
        """What a row is cut into: stretches, and as many of them as there are programs."""
        splits = self.builder.tunables[f"SPLIT{self.number}"][1] if self._split > 1 else [1]
        return (
            [power_of_two(column.extent)]
            if self._in_registers
            else [length * split for length in self._chunk_sizes for split in splits]
        )

    def _add_kernel(self, name: str, body: list[str], shared: bool, last: bool) -> None:
        """`shared`: several programs share a row; `last`: totals are made here."""
        number = "block // SPLIT" if shared else "block"
        lines = [
            f"rows = {number}" if self._one_row else f"rows = {number} * ROWS + tl.arange(0, ROWS)[:, None]",
            *self._mask,
        ]
        lines += ["part = block % SPLIT"] if shared else []
        for column in self._columns.values() if self._in_registers else ():
            lines += [
                f"{column.name} = {self._arange(power_of_two(column.extent))}",
                *self._column_mask(column),
            ]
        blocks = (
            str(self.stage.rows) if self._one_row else f"-(-{self.stage.rows} // {self._constants['ROWS']})"
        )
        blocks += f" * {self._constants['SPLIT']}" if shared else ""
        if not last:
            body = [f"block = {self.builder.program_id()}", *lines, *body]
            self.builder.add_kernel(name, body, self._constants, blocks, num_warps=f"THREADS{self.number} // 32")
            return
        body, grid = self.loop_over_blocks(blocks, [*lines, *body])
        self.launch(name, body, self._constants, blocks, grid)
        self.write_totals(grid)

    def _arange(self, length: int | str) -> str:
        """A stretch of the tile's second side, or of the only one."""
        return f"tl.arange(0, {length})" if self._one_row else f"tl.arange(0, {length})[None, :]"

    def _reduce_row(self, kind: str, text: str, value: Expr) -> str:
        """One number for each row of the tile."""
        return self.printer.reduce(kind, text, value.dtype, 0 if self._one_row else 1, keep=not self._one_row)

    def _broadcast(self, text: str, value: Expr, loops: Iterable[LoopVar], length: str) -> str:
        """As long as the tile, even where the value is the same all along the row."""
        if value.variables & set(loops):
            return text
        return f"(tl.zeros({f'[{length}]' if self._one_row else f'[1, {length}]'}, {compute_type(value.dtype)}) + {text})"

    def _column_mask(self, column: LoopVar) -> list[str]:
        mask = self.printer.masks.get(column)
        return [f"{mask} = {column.name} < {column.extent}"] if mask else []

    # --- one pass ----------------------------------------------------------------------------------------------

    def _emit_pass(self, one: RowPass, names: Names) -> list[str]:
        if not one.loops:
            return self.emit_row_steps(one, names)
        column = self._columns[one.loops]
        if self._in_registers:
            length = str(power_of_two(column.extent))
            lines = []
            for scan in scans_of(step.value for step in one.steps):
                lines += self._emit_scan(scan, names, length, "")
            lines += self.printer.statements([s.value for s in one.steps if s.value.op not in UNNAMED_OPS], names)
            for step in one.steps:
                text = (
                    self.emit_store(step, names)
                    if isinstance(step, StoreStep)
                    else self._reduce_input(one, step, names, length)
                )
                lines.append(
                    text
                    if isinstance(step, StoreStep)
                    else f"{step.name} = {self._reduce_row(step.kind, text, step.value)}"
                )
            return lines
        return self._emit_chunked_pass(one, names, column)

    def _emit_scan(self, scan: Expr, names: Names, length: str, before: str) -> list[str]:
        """The running sum of what the tile holds, on top of what came before it."""
        (arg,) = scan.args
        lines = self.printer.statements([arg] if arg.op not in UNNAMED_OPS else [], names)
        text = self._broadcast(self.printer.reduce_operand(scan.data[0], arg, names), arg, scan.data[1:], length)
        made = self.printer.scan(scan.data[0], text, 0 if self._one_row else 1)
        names[scan] = f"v{scan.number}"
        return [*lines, f"{names[scan]} = {combine(scan.data[0], before, made) if before else made}"]

    def _reduce_input(self, one: RowPass, step: ReduceStep, names: Names, length: str, nothing: str = "") -> str:
        """What the tile gives to a reduction: nothing where there is no element."""
        text = self._broadcast(self.printer.reduce_operand(step.kind, step.value, names), step.value, one.loops, length)
        masks = [mask for mask in (self.printer.masks.get(self._columns[one.loops]),) if mask] + self.guard_conditions(
            one.guards
        )
        nothing = nothing or identity(step.kind, accumulator_dtype(step.kind, step.value))
        return f"tl.where({' & '.join(masks)}, {text}, {nothing})" if masks else text

    def _emit_chunked_pass(self, one: RowPass, names: Names, column: LoopVar) -> list[str]:
        roots = [step.value for step in one.steps]
        given = {f.base_value for f in (self._followers.get(r.name) for r in _reduce_steps(one)) if f}
        lines = self.printer.statements(loop_invariants(roots, set(one.loops), {**names, **dict.fromkeys(given, "")}), names)
        reduces, scans = _reduce_steps(one), scans_of(roots)
        following = {r.name: follower for r in reduces if (follower := self._followers.get(r.name))}
        squares = {
            follower.base.name: name for name, follower in following.items() if follower.kind == "centred"
        }
        tops = {follower.base.name for follower in following.values() if follower.kind == "scaled"}
        for r in reduces:
            by_row = r.name in tops or (r.name in following and r.name not in squares.values())
            shape = self.row_shape if by_row else "[STRETCH]" if self._one_row else "[ROWS, STRETCH]"
            lines.append(f"{r.name} = {initial_value(r.kind, accumulator_dtype(r.kind, r.value), shape)}")
        for scan in scans:
            lines.append(f"s{scan.number} = {initial_value(scan.data[0], scan.dtype, self.row_shape)}")
        own = dict(names)
        body = [f"{column.name} = start + {self._arange('STRETCH')}", *self._column_mask(column)]
        for scan in scans:
            body += self._emit_scan(scan, own, "STRETCH", f"s{scan.number}")
            whole = self._reduce_input(one, ReduceStep("", scan.data[0], scan.args[0], one.loops), own, "STRETCH")
            body.append(
                f"s{scan.number} = {combine(scan.data[0], f's{scan.number}', self._reduce_row(scan.data[0], whole, scan))}"
            )
        plain = [step for step in one.steps if not (isinstance(step, ReduceStep) and step.name in following)]
        body += self.printer.statements([s.value for s in plain if s.value.op not in UNNAMED_OPS], own)
        for step in plain:
            if isinstance(step, StoreStep):
                body.append(self.emit_store(step, own))
            elif step.name in squares:
                body += self._update_welford(
                    step, self._reduce_input(one, step, own, "STRETCH", nothing=step.name), squares[step.name]
                )
            else:
                text = self._reduce_input(one, step, own, "STRETCH")
                body += (
                    _update_maximum(step, self._reduce_row("max", text, step.value))
                    if step.name in tops
                    else [_accumulate(step, text)]
                )
        for step in reduces:
            if step.name in following and step.name not in squares.values():
                body += self._rescale_sum(one, step, own)
        lines += self._chunk_loop(column, [*body, *(f"{name} = {name}_now" for name in sorted(tops))])
        for mean, name in squares.items():
            lines += self._merge_welford(mean, name, following[name].base.value, column)
        done = {*tops, *following, *squares}
        return lines + [
            f"{r.name} = {self._reduce_row(r.kind, r.name, r.value)}" for r in reduces if r.name not in done
        ]

    def _chunk_loop(self, column: LoopVar, body: list[str]) -> list[str]:
        """The loop over the stretches of a row, or of the part of it that the program has."""
        if self._split == 1:
            return [f"for start in range(0, {column.extent}, STRETCH):", *indented(body)]
        turns = f"({column.extent} + STRETCH * SPLIT - 1) // (STRETCH * SPLIT)"
        head = ["seen = turn * STRETCH", f"start = part * {self._split_length(column)} + seen"]
        return [f"for turn in range(0, {turns}):", *indented([*head, *body])]

    def _split_length(self, column: LoopVar) -> str:
        """Elements of a row that are one program's."""
        return f"(({column.extent} + STRETCH * SPLIT - 1) // (STRETCH * SPLIT) * STRETCH)"

    # --- reductions that follow another ------------------------------------------------------------------------

    def _rescale_sum(self, one: RowPass, step: ReduceStep, names: Names) -> list[str]:
        """A sum that is scaled down where the maximum so far grows."""
        follower = self._followers[step.name]
        base = follower.base.name
        own = {**names, follower.base_value: f"{base}_top"}
        lines = self.printer.statements([step.value], own)
        here = self._reduce_row("sum", self._reduce_input(one, step, own, "STRETCH"), step.value)
        return [*lines, f"{step.name} = {step.name} * tl.exp({base} - {base}_top) + {here}"]

    def _update_welford(self, step: ReduceStep, text: str, squares: str) -> list[str]:
        """Each place of the tile has a mean of its own so far, and squares about it; elements that are none are given as that
        mean, and change nothing."""
        name, turn = step.name, "start // STRETCH" if self._split == 1 else "turn"
        return [
            f"{name}_here = {text}",
            f"{name}_off = {name}_here - {name}",
            f"{name} += {name}_off * (tl.full([], 1.0, {compute_type(step.value.dtype)}) / ({turn} + 1))",
            f"{squares} += {name}_off * ({name}_here - {name})",
        ]

    def _merge_welford(self, mean: str, squares: str, value: Expr, column: LoopVar) -> list[str]:
        """The sum, and the squares about the mean, of what all places of the tile have seen."""
        lines, count, all_of_it = [], str(column.extent), f"{column.extent}.0"
        if self._split > 1:
            section = self._split_length(column)
            lines += [
                f"{mean}_count = tl.minimum(tl.maximum({column.extent} - part * {section}, 0), {section})"
            ]
            count, all_of_it = f"{mean}_count", f"tl.maximum({mean}_count, 1)"
        return [
            *lines,
            f"{mean}_seen = (tl.maximum({count} - {self._arange('STRETCH')}, 0) + STRETCH - 1) // STRETCH * 1.0",
            f"{mean}_all = {self._reduce_row('sum', f'{mean} * {mean}_seen', value)}",
            f"{mean}_off = {mean} - {mean}_all / {all_of_it}",
            f"{squares} = {self._reduce_row('sum', f'{squares} + {mean}_seen * {mean}_off * {mean}_off', value)}",
            f"{mean} = {mean}_all",
        ]

    # --- rows that several programs share ----------------------------------------------------------------------

    def _store_partials(self, one: RowPass) -> list[str]:
        """Each program's part of the row's numbers goes to memory."""
        lines, mask = [], self.printer.masks.get(self.row)
        for r in _reduce_steps(one):
            self.builder.add_scratch(
                f"part_{r.name}",
                f"{self.stage.rows} * {self._constants['SPLIT']}",
                scratch_dtype(r.kind, r.value),
            )
            self.printer.pointers[f"part_{r.name}"] = None
            lines.append(
                f"tl.store(part_{r.name} + rows * SPLIT + part, {r.name}{f', mask={mask}' if mask else ''})"
            )
        return lines

    def _load_partials(self, done: list[RowPass], names: Names) -> list[str]:
        """The row's numbers, of the parts that earlier kernels have left, and those that need no loop."""
        lines, mask = [f"parts = {self._arange('SPLIT')}"] if done else [], self.printer.masks.get(self.row)
        there: set[str] = set()
        for one in self._passes:
            reduces = _reduce_steps(one)
            if not one.loops and reduces and _depends_only_on(reduces, there):
                lines += self.emit_row_steps(RowPass((), [*reduces]), names)
            elif one in done:
                for r in reduces:
                    self.printer.pointers[f"part_{r.name}"] = None
                    lines.append(
                        f"{r.name}_parts = tl.load(part_{r.name} + rows * SPLIT + parts{f', mask={mask}, other=0' if mask else ''})"
                    )
                    lines += self._combine_partials(r, self._columns[one.loops])
            else:
                continue
            there |= {r.name for r in reduces}
        return lines

    def _combine_partials(self, r: ReduceStep, column: LoopVar) -> list[str]:
        follower, name = self._followers.get(r.name), r.name
        if follower is None:
            return [f"{name} = {self._reduce_row(r.kind, f'{name}_parts', r.value)}"]
        base = follower.base.name
        if follower.kind == "scaled":
            return [
                f'{base}_top = tl.where({base} == float("-inf"), 0.0, {base})',
                f"{name} = {self._reduce_row('sum', f'{name}_parts * tl.exp({base}_parts - {base}_top)', r.value)}",
            ]
        section = self._split_length(column)
        return [
            f"{name}_count = tl.minimum(tl.maximum({column.extent} - parts * {section}, 0), {section}) * 1.0",
            f"{name}_off = {base}_parts / tl.maximum({name}_count, 1.0) - {base} / {column.extent}.0",
            f"{name} = {self._reduce_row('sum', f'{name}_parts + {name}_count * {name}_off * {name}_off', r.value)}",
        ]


def row_fits_registers(stage: Stage) -> bool:
    """A whole row lies in registers."""
    return all(power_of_two(prod(var.extent for var in step.loops)) <= MAX_TILE_ELEMENTS for step in stage.steps)


def _update_maximum(step: ReduceStep, here: str) -> list[str]:
    """The maximum so far; where that is -inf, exp(x - 0) is as good."""
    now = f"{step.name}_now"
    return [
        f"{now} = {combine(step.kind, step.name, here)}",
        f'{step.name}_top = tl.where({now} == float("-inf"), 0.0, {now})',
    ]


def _accumulate(step: ReduceStep, text: str) -> str:
    return f"{step.name} = {combine(step.kind, step.name, text)}"


def _reduce_steps(one: RowPass) -> list[ReduceStep]:
    return [step for step in one.steps if isinstance(step, ReduceStep)]


def _depends_only_on(reduces: list[ReduceStep], there: set[str]) -> bool:
    return all(node.data in there for r in reduces for node in r.value.walk() if node.op == "row")
