"""A program of stages: what a writer of any language is given to write.

A stage goes over its `outer` loops, whose turns are independent of each other (a turn is called a row, whatever it is).
For each row its steps are done in order. A `Reduce` makes one number of the row; a `Store` writes, for each turn of its
own loops, one element of a tensor. Steps may have different loops, and read numbers that earlier steps made. A `Total`
makes one number of all rows, and `after` stores what needs totals, when all rows are done. Where a stage has a
`product`, its row of products is there before the first step.

Stages run one after another; a later one may read the tensors that an earlier one stored, and no other that it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar

ReduceKind = Literal["sum", "max", "min", "prod"]


@dataclass(frozen=True)
class Tensor:
    """Contiguous, of a size that is known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["input", "parameter", "output", "temporary"]
    path: str = ""
    """Of inputs and parameters; see records.Node."""

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Guard:
    """Holds where 0 <= index < size."""

    index: IndexExpr
    size: int


@dataclass(frozen=True)
class ReduceStep:
    name: str
    """How later expressions call it: Expr("row", data=name)."""
    kind: ReduceKind
    value: Expr
    loops: tuple[LoopVar, ...]
    guards: tuple[Guard, ...] = ()
    """Elements for which one of them does not hold are left out, and their value must not be computed."""


@dataclass(frozen=True)
class StoreStep:
    tensor: str
    index: IndexExpr
    value: Expr
    loops: tuple[LoopVar, ...]
    """Without any: one element a row."""


@dataclass(frozen=True)
class Total:
    name: str
    kind: ReduceKind
    value: Expr
    """Of one row."""


@dataclass(frozen=True)
class MatrixProduct:
    """For each column: the sum over `depth` of left * right."""

    name: str
    left: Expr
    """Depends on the outer loops and on `depth`."""
    right: Expr
    """Depends on `batch`, `depth` and `column`, not on the row within a batch."""
    column: LoopVar
    depth: LoopVar
    batch: tuple[LoopVar, ...]
    """The leading outer loops; the last outer loop is the row within a batch."""


@dataclass(frozen=True)
class Stage:
    outer: tuple[LoopVar, ...]
    steps: tuple[ReduceStep | StoreStep, ...]
    totals: tuple[Total, ...] = ()
    epilogue: tuple[StoreStep, ...] = ()
    product: MatrixProduct | None = None

    @property
    def rows(self) -> int:
        return prod(var.extent for var in self.outer)

    @property
    def row_loops(self) -> tuple[LoopVar, ...]:
        """The loops of the step that goes over most elements of a row."""
        return max(
            (step.loops for step in self.steps),
            key=lambda loops: prod(var.extent for var in loops),
            default=(),
        )

    @property
    def row_width(self) -> int:
        """How many elements those are."""
        return prod(var.extent for var in self.row_loops)

    @property
    def expressions(self) -> list[Expr]:
        """Everything that it computes."""
        made = [step.value for step in (*self.steps, *self.epilogue)] + [total.value for total in self.totals]
        return made + ([self.product.left, self.product.right] if self.product else [])

    @property
    def reductions(self) -> tuple[ReduceStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, ReduceStep))


@dataclass(frozen=True)
class Program:
    tensors: tuple[Tensor, ...]
    """Inputs, parameters (unused ones too: a candidate must have them), outputs in order, temporaries."""
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    single_output: bool

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def loaded_tensors(self) -> frozenset[str]:
        """The tensors that stages load from."""
        roots = [root for stage in self.stages for root in stage.expressions]
        return frozenset(node.data[0] for root in roots for node in root.walk() if node.op == "load")
