"""Products in Triton: tiles on tensor cores, with what comes before and after them in the same kernel."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import name_product_elements, find_contraction
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.ir.indices import (IndexExpr, LoopVar, flatten, iterations, unflatten_loops, variable)
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep
from kernelpro.authors.playbook.triton.syntax import storage_type
from kernelpro.authors.playbook.triton.stage_kernel import UNNAMED_OPS, TritonSourceBuilder, indented

_MIN_TILE = 16
"""The least side of a tile that tensor cores take."""
_MAX_SHARED_BYTES = 232448
"""Bytes of shared memory that a block can have on the GPUs that have most of it."""
_TYPES = ("float32", "float16", "bfloat16")


class TritonMatmul:
    """One product, and in the same kernel the steps that need one of its elements at a time."""

    def __init__(self, kernels: TritonSourceBuilder, stage: Stage, how: StageDesign, place: int, precision: str):
        self._builder, self._printer, self._stage, self._design, self._number = (
            kernels,
            kernels.printer,
            stage,
            how,
            place,
        )
        found = find_contraction(stage)
        assert found, "the caller has looked"
        self._contraction, self._precision = found, precision
        if found.left.dtype not in _TYPES:
            raise NoProposal(f"products of {found.left.dtype}: the playbook has none for Triton")
        self._batch = LoopVar("batch", iterations(found.batch))
        self._row, self._column = LoopVar("rows", iterations(found.rows)), LoopVar("cols", iterations(found.columns))
        self._depth = iterations(found.depth)
        self._printer.load_conditions = masked_loads(stage.expressions)

    def write(self) -> Stage | None:
        """Adds the kernel; what is left of the stage where its steps need more than one element at a time."""
        names, fused = name_product_elements(self._stage, variable(self._column), "acc")
        left = None
        if not fused:
            assert self._stage.product
            name = self._stage.product.name
            count = self._batch.extent * self._row.extent * self._column.extent
            self._builder.add_scratch(name, str(count), "float32")
            row = flatten(
                [variable(var) for var in self._stage.outer], [var.extent for var in self._stage.outer]
            )
            self._printer.products[name] = (row, self._column.extent)
            left = replace(self._stage, product=None)
        self._write(names, fused)
        return left

    # --- the kernel --------------------------------------------------------------------------------------------

    def _write(self, names: Names, fused: bool) -> None:
        place, kernels, printer = self._number, self._builder, self._printer
        how, sides = self._design, (self._row.extent, self._column.extent, self._depth)
        down, over, deep = (
            self._fit_side(wanted, size)
            for wanted, size in zip((how.tile_m, how.tile_n, how.tile_k), sides, strict=True)
        )
        constants = {
            "TILE_M": kernels.tunable(f"TILE_M{place}", down, self._tile_sizes(self._row.extent, (64, 128, 256))),
            "TILE_N": kernels.tunable(f"TILE_N{place}", over, self._tile_sizes(self._column.extent, (64, 128, 256))),
            "TILE_K": kernels.tunable(
                f"TILE_K{place}", deep, self._tile_sizes(self._depth, (32, 64, 128) if self._is_16_bit else (16, 32, 64))
            ),
            "GROUP": kernels.tunable(f"GROUP{place}", 8, (4, 8, 16)),
        }
        stages = kernels.tunable(f"PIPELINE_STAGES{place}", how.pipeline_stages, (2, 3, 4))
        kernels.add_threads_tunable(place, how.threads)
        fetched = f"(TILE_M{place} + TILE_N{place}) * TILE_K{place} * PIPELINE_STAGES{place} * {2 if self._is_16_bit else 4}"
        kernels.derived_constants.append(f"# tune-if: {fetched} <= {_MAX_SHARED_BYTES}")
        masked = {
            var: any(size % n for n in kernels.tunables[f"{key}{place}"][1])
            for var, size, key in self._tile_axes()
        }
        body = self._tile_position()
        for var in (self._row, self._column):
            body += [f"{var.name}_in = {var.name} < {var.extent}"] if masked[var] else []
        body += ["acc = tl.zeros([TILE_M, TILE_N], tl.float32)", f"for start in range(0, {self._depth}, TILE_K):"]
        body += indented(
            [
                *self._load_operand("a", masked),
                *self._load_operand("b", masked),
                f"acc = tl.dot(a, b, acc{self._precision_argument()})",
            ]
        )
        printer.loop_indices = self._output_indices()
        printer.masks = {var: f"{var.name}_in" for var in (self._row, self._column) if masked[var]}
        body += self._epilogue(names) if fused else self._store_product()
        tiles = f"-(-{self._row.extent} // {constants['TILE_M']}) * -(-{self._column.extent} // {constants['TILE_N']})"
        grid = f"{self._batch.extent} * ({tiles})" if self._batch.extent > 1 else tiles
        kernels.add_kernel(
            f"product{place}", body, constants, grid, num_warps=f"THREADS{place} // 32", num_stages=stages
        )

    @property
    def _is_16_bit(self) -> bool:
        return self._contraction.left.dtype != "float32"

    def _fit_side(self, wanted: int, size: int) -> int:
        return max(min(wanted, power_of_two(size)), _MIN_TILE)

    def _tile_sizes(self, size: int, values: tuple[int, ...]) -> list[int]:
        return [value for value in values if value <= max(power_of_two(size), _MIN_TILE)]

    def _tile_axes(self) -> list[tuple[LoopVar, int, str]]:
        deep = [(LoopVar(name, self._depth), self._depth, "TILE_K") for name in ("along", "below")]
        return [(self._row, self._row.extent, "TILE_M"), (self._column, self._column.extent, "TILE_N"), *deep]

    def _tile_position(self) -> list[str]:
        """Programs that run at the same time take tiles that share rows and columns: they find them in the cache."""
        lines = [f"number = {self._builder.program_id()}"]
        lines += [
            f"tiles_down = ({self._row.extent} + TILE_M - 1) // TILE_M",
            f"tiles_over = ({self._column.extent} + TILE_N - 1) // TILE_N",
        ]
        if self._batch.extent > 1:
            lines += [
                "batch = number // (tiles_down * tiles_over)",
                "number = number % (tiles_down * tiles_over)",
            ]
        return [
            *lines,
            "first = number // (GROUP * tiles_over) * GROUP",
            "height = tl.minimum(tiles_down - first, GROUP)",
            "rows = (first + number % (GROUP * tiles_over) % height) * TILE_M + tl.arange(0, TILE_M)[:, None]",
            "cols = number % (GROUP * tiles_over) // height * TILE_N + tl.arange(0, TILE_N)[None, :]",
        ]

    def _output_indices(self) -> dict[LoopVar, IndexExpr]:
        sides = ((self._contraction.batch, self._batch), (self._contraction.rows, self._row), (self._contraction.columns, self._column))
        return {var: index for loops, flat in sides for var, index in unflatten_loops(loops, variable(flat)).items()}

    def _load_operand(self, name: str, masked: dict[LoopVar, bool]) -> list[str]:
        of, printer, left = self._contraction, self._printer, name == "a"
        value, side = (of.left, self._row) if left else (of.right, self._column)
        depth = LoopVar("along" if left else "below", self._depth)
        printer.loop_indices = {**self._output_indices(), **unflatten_loops(of.depth, variable(depth))}
        printer.masks = {var: f"{var.name}_in" for var in (side, depth) if masked[var]}
        lines = [f"{depth.name} = start + tl.arange(0, TILE_K){'[None, :]' if left else '[:, None]'}"]
        lines += [f"{depth.name}_in = {depth.name} < {self._depth}"] if masked[depth] else []
        names: Names = {}
        inside = self._guard_conditions() if left else []
        if value.op == "load":
            return [*lines, f"{name} = {printer.raw_load(value, names, inside)}"]
        lines += printer.statements([value], names)
        text = printer.text(value, names)
        inside += [printer.masks[depth]] if masked[depth] else []
        text = f"tl.where({' & '.join(inside)}, {text}, 0.0)" if inside else text
        return [*lines, f"{name} = ({text}).to({storage_type(value.dtype)})" if self._is_16_bit else f"{name} = {text}"]

    def _guard_conditions(self) -> list[str]:
        parts = []
        for guard in self._contraction.guards:
            text, (low, high) = self._printer.index(guard.index), guard.index.bounds
            parts += [f"({text} >= 0)"] if low < 0 else []
            parts += [f"({text} < {guard.size})"] if high >= guard.size else []
        return parts

    def _precision_argument(self) -> str:
        return "" if self._is_16_bit else f', input_precision="{"ieee" if self._precision == "fp32" else "tf32"}"'

    def _epilogue(self, names: Names) -> list[str]:
        printer, lines = self._printer, list[str]()
        for step in self._stage.steps:
            if isinstance(step, StoreStep):
                printer.loop_indices.update(unflatten_loops(step.loops, variable(self._column)))
                lines += printer.statements(
                    [step.value] if step.value.op not in (*UNNAMED_OPS, "product") else [], names
                )
                lines.append(printer.store(step.tensor, step.index, printer.text(step.value, names), names))
        return lines

    def _store_product(self) -> list[str]:
        assert self._stage.product
        name, mask = self._stage.product.name, " & ".join(self._printer.masks.values())
        self._printer.pointers[name] = None
        start = f"batch * {self._row.extent * self._column.extent} + " if self._batch.extent > 1 else ""
        return [
            f"tl.store({name} + {start}rows * {self._column.extent} + cols, acc{f', mask={mask}' if mask else ''})"
        ]
