"""Products in Triton: tiles on tensor cores, with what comes before and after them in the same kernel."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import name_product_elements, unflatten_loops, find_contraction, size
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, flatten, variable
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep
from kernelpro.authors.playbook.triton.syntax import stored
from kernelpro.authors.playbook.triton.stage_kernel import NAMELESS, Kernels, indented

_SMALLEST = 16
"""The least side of a tile that tensor cores take."""
_SHARED = 232448
"""Bytes of shared memory that a block can have on the GPUs that have most of it."""
_TYPES = ("float32", "float16", "bfloat16")


class Tiles:
    """One product, and in the same kernel the steps that need one of its elements at a time."""

    def __init__(self, kernels: Kernels, stage: Stage, how: StageDesign, place: int, precision: str):
        self._kernels, self._printer, self._stage, self._how, self._place = (
            kernels,
            kernels.printer,
            stage,
            how,
            place,
        )
        found = find_contraction(stage)
        assert found, "the caller has looked"
        self._of, self._precision = found, precision
        if found.left.dtype not in _TYPES:
            raise NoProposal(f"products of {found.left.dtype}: the playbook has none for Triton")
        self._batch = LoopVar("batch", size(found.batch))
        self._row, self._column = LoopVar("rows", size(found.rows)), LoopVar("cols", size(found.columns))
        self._depth = size(found.depth)
        self._printer.hidden = masked_loads(stage.expressions)

    def write(self) -> Stage | None:
        """Adds the kernel; what is left of the stage where its steps need more than one element at a time."""
        names, fused = name_product_elements(self._stage, variable(self._column), "acc")
        left = None
        if not fused:
            assert self._stage.product
            name = self._stage.product.name
            count = self._batch.extent * self._row.extent * self._column.extent
            self._kernels.scratch(name, str(count), "float32")
            row = flatten(
                [variable(var) for var in self._stage.outer], [var.extent for var in self._stage.outer]
            )
            self._printer.products[name] = (row, self._column.extent)
            left = replace(self._stage, product=None)
        self._write(names, fused)
        return left

    # --- the kernel --------------------------------------------------------------------------------------------

    def _write(self, names: Names, fused: bool) -> None:
        place, kernels, printer = self._place, self._kernels, self._printer
        how, sides = self._how, (self._row.extent, self._column.extent, self._depth)
        down, over, deep = (
            self._side(wanted, size)
            for wanted, size in zip((how.tile_m, how.tile_n, how.tile_k), sides, strict=True)
        )
        constants = {
            "TILE_M": kernels.tunable(f"TILE_M{place}", down, self._sizes(self._row.extent, (64, 128, 256))),
            "TILE_N": kernels.tunable(f"TILE_N{place}", over, self._sizes(self._column.extent, (64, 128, 256))),
            "TILE_K": kernels.tunable(
                f"TILE_K{place}", deep, self._sizes(self._depth, (32, 64, 128) if self._half else (16, 32, 64))
            ),
            "GROUP": kernels.tunable(f"GROUP{place}", 8, (4, 8, 16)),
        }
        stages = kernels.tunable(f"PIPELINE_STAGES{place}", how.pipeline_stages, (2, 3, 4))
        kernels.threads(place, how.threads)
        fetched = f"(TILE_M{place} + TILE_N{place}) * TILE_K{place} * PIPELINE_STAGES{place} * {2 if self._half else 4}"
        kernels.derived.append(f"# tune-if: {fetched} <= {_SHARED}")
        masked = {
            var: any(size % n for n in kernels.tunables[f"{key}{place}"][1])
            for var, size, key in self._sides()
        }
        body = self._where()
        for var in (self._row, self._column):
            body += [f"{var.name}_in = {var.name} < {var.extent}"] if masked[var] else []
        body += ["acc = tl.zeros([TILE_M, TILE_N], tl.float32)", f"for start in range(0, {self._depth}, TILE_K):"]
        body += indented(
            [
                *self._operand("a", masked),
                *self._operand("b", masked),
                f"acc = tl.dot(a, b, acc{self._how_precise()})",
            ]
        )
        printer.places = self._outer()
        printer.masks = {var: f"{var.name}_in" for var in (self._row, self._column) if masked[var]}
        body += self._after(names) if fused else self._raw()
        tiles = f"-(-{self._row.extent} // {constants['TILE_M']}) * -(-{self._column.extent} // {constants['TILE_N']})"
        grid = f"{self._batch.extent} * ({tiles})" if self._batch.extent > 1 else tiles
        kernels.add(
            f"product{place}", body, constants, grid, num_warps=f"THREADS{place} // 32", num_stages=stages
        )

    @property
    def _half(self) -> bool:
        return self._of.left.dtype != "float32"

    def _side(self, wanted: int, size: int) -> int:
        return max(min(wanted, power_of_two(size)), _SMALLEST)

    def _sizes(self, size: int, values: tuple[int, ...]) -> list[int]:
        return [value for value in values if value <= max(power_of_two(size), _SMALLEST)]

    def _sides(self) -> list[tuple[LoopVar, int, str]]:
        deep = [(LoopVar(name, self._depth), self._depth, "TILE_K") for name in ("along", "below")]
        return [(self._row, self._row.extent, "TILE_M"), (self._column, self._column.extent, "TILE_N"), *deep]

    def _where(self) -> list[str]:
        """Programs that run at the same time take tiles that share rows and columns: they find them in the cache."""
        lines = [f"number = {self._kernels.program_number()}"]
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

    def _outer(self) -> dict[LoopVar, IndexExpr]:
        sides = ((self._of.batch, self._batch), (self._of.rows, self._row), (self._of.columns, self._column))
        return {var: index for loops, flat in sides for var, index in unflatten_loops(loops, variable(flat)).items()}

    def _operand(self, name: str, masked: dict[LoopVar, bool]) -> list[str]:
        of, printer, left = self._of, self._printer, name == "a"
        value, side = (of.left, self._row) if left else (of.right, self._column)
        depth = LoopVar("along" if left else "below", self._depth)
        printer.places = {**self._outer(), **unflatten_loops(of.depth, variable(depth))}
        printer.masks = {var: f"{var.name}_in" for var in (side, depth) if masked[var]}
        lines = [f"{depth.name} = start + tl.arange(0, TILE_K){'[None, :]' if left else '[:, None]'}"]
        lines += [f"{depth.name}_in = {depth.name} < {self._depth}"] if masked[depth] else []
        names: Names = {}
        inside = self._inside() if left else []
        if value.op == "load":
            return [*lines, f"{name} = {printer.raw(value, names, inside)}"]
        lines += printer.statements([value], names)
        text = printer.text(value, names)
        inside += [printer.masks[depth]] if masked[depth] else []
        text = f"tl.where({' & '.join(inside)}, {text}, 0.0)" if inside else text
        return [*lines, f"{name} = ({text}).to({stored(value.dtype)})" if self._half else f"{name} = {text}"]

    def _inside(self) -> list[str]:
        parts = []
        for guard in self._of.guards:
            text, (low, high) = self._printer.index(guard.index), guard.index.bounds
            parts += [f"({text} >= 0)"] if low < 0 else []
            parts += [f"({text} < {guard.size})"] if high >= guard.size else []
        return parts

    def _how_precise(self) -> str:
        return "" if self._half else f', input_precision="{"ieee" if self._precision == "fp32" else "tf32"}"'

    def _after(self, names: Names) -> list[str]:
        printer, lines = self._printer, list[str]()
        for step in self._stage.steps:
            if isinstance(step, StoreStep):
                printer.places.update(unflatten_loops(step.loops, variable(self._column)))
                lines += printer.statements(
                    [step.value] if step.value.op not in (*NAMELESS, "product") else [], names
                )
                lines.append(printer.store(step.tensor, step.index, printer.text(step.value, names), names))
        return lines

    def _raw(self) -> list[str]:
        assert self._stage.product
        name, mask = self._stage.product.name, " & ".join(self._printer.masks.values())
        self._printer.touched[name] = None
        start = f"batch * {self._row.extent * self._column.extent} + " if self._batch.extent > 1 else ""
        return [
            f"tl.store({name} + {start}rows * {self._column.extent} + cols, acc{f', mask={mask}' if mask else ''})"
        ]
