"""Rows that lie along one axis of a Triton tile: reductions along that axis, and the steps of whole rows in
registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import LoopVar
from kernelpro.authors.playbook.ir.stages import ReduceStep, StoreStep
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.triton.syntax import (
    TritonPrinter,
    accumulator_dtype,
    compute_type,
    identity_element,
)

UNNAMED_OPS = ("const", "row", "total")
"""Expressions that are printed in place, without a variable of their own."""


class TileRows:
    """Prints what is computed along the rows of a tile. `axis` is None for a tile with one row: it has one
    axis, and values of the row are scalars."""

    def __init__(self, printer: TritonPrinter, axis: int | None):
        self._printer, self._axis = printer, axis

    def reduce(self, kind: str, text: str, value: Expr) -> str:
        """The reduction of each row of the tile."""
        keep = self._axis is not None
        return self._printer.reduce(kind, text, value.dtype, self._axis or 0, keep=keep)

    def broadcast(self, text: str, value: Expr, loops: Iterable[LoopVar], length: str) -> str:
        """The text of a value, broadcast to the length of the tile if it is constant along the row."""
        if value.variables & set(loops):
            return text
        shape = {None: f"[{length}]", 0: f"[{length}, 1]", 1: f"[1, {length}]"}[self._axis]
        return f"(tl.zeros({shape}, {compute_type(value.dtype)}) + {text})"

    def operand(
        self,
        row_pass: RowPass,
        step: ReduceStep,
        names: Names,
        column: LoopVar,
        length: str,
        masked_value: str = "",
    ) -> str:
        """The operand of a reduction over the tile's axis `column`. Masked elements become the identity
        element, or `masked_value`."""
        operand = self._printer.reduce_operand(step.kind, step.value, names)
        text = self.broadcast(operand, step.value, row_pass.loops, length)
        mask = self._printer.masks.get(column)
        conditions = [*([mask] if mask else []), *self._printer.guard_conditions(row_pass.guards)]
        if not conditions:
            return text
        identity = identity_element(step.kind, accumulator_dtype(step.kind, step.value))
        return f"tl.where({' & '.join(conditions)}, {text}, {masked_value or identity})"

    def statements(
        self,
        row_pass: RowPass,
        names: Names,
        column: LoopVar,
        length: str,
        store: Callable[[StoreStep, Names], str],
    ) -> list[str]:
        """Statements for a pass over whole rows. `store` prints the statement that stores a tile."""
        roots = [root for root in row_pass.roots if root.op not in UNNAMED_OPS]
        lines = self._printer.statements(roots, names)
        for step in row_pass.steps:
            if isinstance(step, StoreStep):
                lines.append(store(step, names))
            elif not row_pass.loops:
                lines.append(f"{step.name} = {self._printer.text(step.value, names)}")
            else:
                text = self.operand(row_pass, step, names, column, length)
                lines.append(f"{step.name} = {self.reduce(step.kind, text, step.value)}")
        return lines
