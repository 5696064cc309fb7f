"""What the Triton kernels of all stages share: masks, per-row steps, and totals over all rows.

A kernel's variables are the axes of its tile. TritonPrinter.loop_indices expresses the stage's loops in them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.indices import LoopVar, unflatten_loops, variable
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.triton.builder import TritonSourceBuilder, indented
from kernelpro.authors.playbook.triton.syntax import (
    accumulator_dtype,
    combine,
    identity_element,
    initial_value,
    scratch_dtype,
)
from kernelpro.authors.playbook.triton.tile_rows import UNNAMED_OPS

_MAX_TOTAL_PROGRAMS = 1024
"""Most programs that accumulate a total: enough to fill a GPU, and few enough for one program to combine."""


class StageKernel(ABC):
    """The kernels of one stage. Its rows lie along one axis of the tile, `rows`."""

    row_shape: str
    """The shape of a per-row value."""

    def __init__(self, builder: TritonSourceBuilder, stage: Stage, design: StageDesign, number: int):
        self.builder, self.printer = builder, builder.printer
        self.stage, self.design, self.number = stage, design, number
        self.row = LoopVar("rows", stage.rows)
        self.printer.loop_indices = unflatten_loops(stage.outer, variable(self.row))
        self.printer.masks = {}
        self.printer.load_conditions = masked_loads(stage.expressions)

    @abstractmethod
    def write(self) -> None:
        """Add the stage's kernels to the builder."""

    def mask_rows(self, tile_sizes: Iterable[int]) -> list[str]:
        """Declare the mask of the rows, unless all possible tile sizes divide the number of rows."""
        if all(self.row.extent % size == 0 for size in tile_sizes):
            return []
        self.printer.masks[self.row] = "rows_mask"
        return [f"rows_mask = rows < {self.row.extent}"]

    def emit_store(self, step: StoreStep, names: Names) -> str:
        """The statement that stores a tile."""
        return self.printer.store(step.tensor, step.index, self.printer.text(step.value, names), names)

    def emit_row_steps(self, row_pass: RowPass, names: Names) -> list[str]:
        """Statements for steps without loops, which have one element per row."""
        lines = self.printer.statements(
            [root for root in row_pass.roots if root.op not in UNNAMED_OPS], names
        )
        for step in row_pass.steps:
            if isinstance(step, StoreStep):
                lines.append(self.emit_store(step, names))
            else:
                lines.append(f"{step.name} = {self.printer.text(step.value, names)}")
        return lines

    # --- totals -----------------------------------------------------------------------------------

    def accumulate_totals(self, names: Names, condition: str = "") -> list[str]:
        """Statements that add the program's rows to the totals, in programs that meet `condition`."""
        totals = self.stage.totals
        lines = self.printer.statements([t.value for t in totals if t.value.op not in UNNAMED_OPS], names)
        mask = " & ".join(part for part in (self.printer.masks.get(self.row, ""), condition) if part)
        for total in totals:
            text = self.printer.text(total.value, names)
            if mask:
                identity = identity_element(total.kind, accumulator_dtype(total.kind, total.value))
                text = f"tl.where({mask}, {text}, {identity})"
            lines.append(f"{total.name} = {combine(total.kind, total.name, text)}")
        return lines

    def start_totals(self) -> list[str]:
        """Statements that declare the accumulators of the totals."""
        return [
            f"{t.name} = {initial_value(t.kind, accumulator_dtype(t.kind, t.value), self.row_shape)}"
            for t in self.stage.totals
        ]

    def store_totals(self) -> list[str]:
        """Statements that store the program's partial result of each total."""
        lines = []
        for total in self.stage.totals:
            name, text = total.name, total.name
            self.printer.pointers[f"partial_{name}"] = None
            if self.row_shape != "[]":
                text = self.printer.reduce(total.kind, name, total.value.dtype)
            lines.append(f"tl.store(partial_{name} + tl.program_id(0), {text})")
        return lines

    def loop_over_blocks(self, blocks: str, body: list[str]) -> tuple[list[str], str]:
        """The body for all blocks of rows of a program, and the number of programs.

        In the body, `block` is the current block. If the stage has totals, a program loops over several
        blocks, and an `if` checks that the last one exists: Triton's interpreter does not support a scalar
        mask for a whole tile.
        """
        program_id = self.builder.program_id()
        if not self.stage.totals:
            return [f"block = {program_id}", *body], blocks
        loop_body = [f"block = {program_id} + i * PROGRAMS", "if block < BLOCKS:", *indented(body)]
        loop = ["for i in range(0, (BLOCKS + PROGRAMS - 1) // PROGRAMS):", *indented(loop_body)]
        return [*self.start_totals(), *loop, *self.store_totals()], f"min({blocks}, {_MAX_TOTAL_PROGRAMS})"

    def launch(
        self, name: str, body: list[str], constants: Mapping[str, str], blocks: str, grid: str
    ) -> None:
        """Add the kernel for outputs and partial totals, and the kernel that combines the totals."""
        if self.stage.totals:
            constants = {**constants, "BLOCKS": blocks, "PROGRAMS": grid}
        for total in self.stage.totals:
            self.builder.add_scratch(f"partial_{total.name}", grid, scratch_dtype(total.kind, total.value))
        self.builder.add_kernel(name, body, constants, grid, num_warps=f"THREADS{self.number} // 32")
        if self.stage.totals:
            self._combine_totals(grid)

    def _combine_totals(self, count: str) -> None:
        """Add the kernel that combines the partial totals of `count` programs and runs the epilogue."""
        lines = ["offsets = tl.arange(0, BLOCK)"]
        for total in self.stage.totals:
            name, dtype = total.name, accumulator_dtype(total.kind, total.value)
            identity = identity_element(total.kind, dtype)
            self.printer.pointers[f"partial_{name}"] = None
            position = "start + offsets"
            load = f"tl.load(partial_{name} + {position}, mask={position} < COUNT, other={identity})"
            lines += [
                f"{name} = {initial_value(total.kind, dtype, '[BLOCK]')}",
                "for start in range(0, COUNT, BLOCK):",
                *indented([f"{name} = {combine(total.kind, name, load)}"]),
                f"{name} = {self.printer.reduce(total.kind, name, total.value.dtype)}",
            ]
        self.printer.masks = {}
        lines += self.emit_row_steps(RowPass((), list(self.stage.epilogue)), {})
        constants = {"COUNT": count, "BLOCK": "1024"}
        self.builder.add_kernel(f"stage{self.number}_totals", lines, constants, "1", num_warps="4")
