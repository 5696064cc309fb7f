"""Triton kernels with one row per lane, and kernels for element-wise stages that transpose."""

from __future__ import annotations

from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.expressions import nodes_of
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    LoopVar,
    iterations,
    unflatten_loops,
    variable,
)
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
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
    identity_element,
    initial_value,
)
from kernelpro.authors.playbook.triton.tile_rows import UNNAMED_OPS

_TILE_SIDES = (16, 32, 64, 128)
_MIN_TILE_SIDE = 4
"""Shorter loops are not worth a tile: this many float32 elements are 16 bytes."""
_MAX_UNROLLED = 64
"""Loops are unrolled up to this many elements in all passes. Triton took 100 s to compile 240."""


class RowPerLane(StageKernel):
    """A one-dimensional tile of consecutive rows; each lane runs the loops of its row by itself."""

    row_shape = "[BLOCK]"

    def write(self) -> None:
        """Adds the stage's kernel to the builder."""
        threads = self.builder.tune_threads(self.number, self.design.threads)
        vectors = self.builder.tune_vector_width(self.number, self.design.vector_width)
        block = f"BLOCK{self.number}"
        self.builder.derived_constants.append(f"{block} = THREADS{self.number} * VECTOR_WIDTH{self.number}")
        body = ["rows = block * BLOCK + tl.arange(0, BLOCK)"]
        body += self.mask_rows(t * v for t in threads for v in vectors)
        names: Names = {}
        passes = split_into_passes(self.stage)
        elements = sum(iterations(row_pass.loops) for row_pass in passes if row_pass.loops)
        loop_range = "tl.static_range" if elements <= _MAX_UNROLLED else "range"
        for row_pass in passes:
            if row_pass.loops:
                body += self._emit_pass(row_pass, names, loop_range)
            else:
                body += self.emit_row_steps(row_pass, names)
        body += self.accumulate_totals(names)
        blocks = f"-(-{self.stage.rows} // {block})"
        body, grid = self.loop_over_blocks(blocks, body)
        self.launch(f"stage{self.number}", body, {"BLOCK": block}, blocks, grid)

    def _emit_pass(self, row_pass: RowPass, names: Names, loop_range: str) -> list[str]:
        self.printer.loop_indices.update({var: variable(var) for var in row_pass.loops})
        roots, scans = row_pass.roots, scans_of(row_pass.roots)
        lines = self.printer.statements(loop_invariants(roots, set(row_pass.loops), names), names)
        accumulators = [(s.name, s.kind, accumulator_dtype(s.kind, s.value)) for s in row_pass.reductions]
        accumulators += [(f"scan{scan.number}", scan.data[0], scan.dtype) for scan in scans]
        lines += [f"{name} = {initial_value(kind, dtype, '[BLOCK]')}" for name, kind, dtype in accumulators]
        inner_names, body = dict(names), list[str]()
        for scan in scans:
            arguments = [arg for arg in scan.args if arg.op not in UNNAMED_OPS]
            body += self.printer.statements(arguments, inner_names)
            name = inner_names[scan] = f"scan{scan.number}"
            body += [f"{name} = {combine(scan.data[0], name, self.printer.text(scan.args[0], inner_names))}"]
        conditions = self.printer.guard_conditions(row_pass.guards)
        body += [f"in_bounds = {' & '.join(conditions)}"] if conditions else []
        body += self.printer.statements([root for root in roots if root.op not in UNNAMED_OPS], inner_names)
        for step in row_pass.steps:
            if isinstance(step, StoreStep):
                body.append(self.emit_store(step, inner_names))
            else:
                body.append(self._accumulate(step, inner_names, bool(conditions)))
        for var in reversed(row_pass.loops):
            body = [f"for {var.name} in {loop_range}({var.extent}):", *indented(body)]
        return lines + body

    def _accumulate(self, step: ReduceStep, names: Names, guarded: bool) -> str:
        text = self.printer.text(step.value, names)
        if guarded:
            identity = identity_element(step.kind, accumulator_dtype(step.kind, step.value))
            text = f"tl.where(in_bounds, {text}, {identity})"
        return f"{step.name} = {combine(step.kind, step.name, text)}"


class TransposeTile(StageKernel):
    """An element-wise stage that reads and writes along different loops: square tiles coalesce both. If one
    loop is shorter than the side, the tile is longer along the other loop."""

    def __init__(
        self,
        builder: TritonSourceBuilder,
        stage: Stage,
        design: StageDesign,
        number: int,
        tile_loops: tuple[LoopVar, LoopVar],
    ):
        super().__init__(builder, stage, design, number)
        self._tile_loops = tile_loops

    def write(self) -> None:
        """Adds the stage's kernel to the builder."""
        loops = (*self.stage.outer, *self.stage.steps[0].loops)
        batch_loops = [var for var in loops if var not in self._tile_loops]
        batch = LoopVar("batch", iterations(batch_loops))
        self.printer.loop_indices = unflatten_loops(batch_loops, variable(batch))
        self.printer.masks = {}
        size = self.builder.tunable(f"COARSENING{self.number}", self.design.coarsening, _TILE_SIDES)
        body, tiles = [f"block = {self.builder.program_id()}"], []
        constants: dict[str, str] = {}
        for var, name, shape in zip(self._tile_loops, ("p", "q"), ("[:, None]", "[None, :]"), strict=True):
            axis = LoopVar(name, var.extent)
            self.printer.loop_indices[var] = variable(axis)
            side, constant = f"SIDE_{name.upper()}", f"SIDE_{name.upper()}{self.number}"
            (other,) = (loop for loop in self._tile_loops if loop != var)
            own, across = power_of_two(var.extent), power_of_two(other.extent)
            self.builder.derived_constants.append(
                f"{constant} = min({own}, {size} * max({size} // {across}, 1))"
            )
            constants[side] = constant
            tiles.append(f"(-(-{var.extent} // {constant}))")
            count = f"(-(-{var.extent} // {side}))"
            body += [
                f"{name} = block % {count} * {side} + tl.arange(0, {side}){shape}",
                f"block = block // {count}",
            ]
            sides = (min(own, s * max(s // across, 1)) for s in self.builder.tunables[size][1])
            if any(var.extent % s for s in sides):
                self.printer.masks[axis] = f"{name}_mask"
                body += [f"{name}_mask = {name} < {var.extent}"]
        body += ["batch = block", *self.emit_row_steps(RowPass((), [*self.stage.steps]), {})]
        self.builder.tune_threads(self.number, self.design.threads)
        grid = " * ".join([str(batch.extent), *tiles])
        warps = f"THREADS{self.number} // 32"
        self.builder.add_kernel(f"stage{self.number}", body, constants, grid, num_warps=warps)


def find_transpose(stage: Stage) -> tuple[LoopVar, LoopVar] | None:
    """The loops along which reads and writes are contiguous; None if both use the same loop."""
    writes = {_contiguous_loop(step.index, stage, step) for step in stage.stores}
    reads = [
        _contiguous_loop(node.data[1], stage, step)
        for step in stage.steps
        for node in step.value.walk()
        if node.op == "load" and len(node.variables) > 1
    ]
    if len(writes) != 1:
        return None
    (write,) = writes
    read = next((var for var in reads if var is not None and var != write), None)
    if write is None or read is None or min(read.extent, write.extent) < _MIN_TILE_SIDE:
        return None
    return read, write


def _contiguous_loop(index: IndexExpr, stage: Stage, step: ReduceStep | StoreStep) -> LoopVar | None:
    return next((var for var in (*stage.outer, *step.loops) if index.coefficient(var) == 1), None)


def regroup_rows(stage: Stage, rows: int) -> Stage:
    """An element-wise stage with its first `rows` loops as rows, and the others along a row."""
    loops = (*stage.outer, *stage.steps[0].loops)
    return Stage(
        loops[:rows], tuple(StoreStep(s.tensor, s.index, s.value, loops[rows:]) for s in stage.stores)
    )


def broadcast_rows(stage: Stage) -> int:
    """How many leading loops of an element-wise stage should become rows, so that a value that it loads is
    constant along the remaining loops, which are long. 0 if none."""
    loops = (*stage.outer, *stage.steps[0].loops)
    loads = nodes_of([step.value for step in stage.steps], "load")
    for rows in range(1, len(loops)):
        rest = set(loops[rows:])
        if prod(var.extent for var in rest) >= 256 and any(
            not node.variables & rest and node.variables for node in loads
        ):
            return rows
    return 0
