"""A program of stages: the loop nests that a backend writes in its language.

A stage runs its `outer` loops, whose iterations are independent of each other; one iteration is called a row.
For each row the stage executes its steps in order. A `ReduceStep` reduces the row to one number; a
`StoreStep` writes one element of a tensor for each iteration of its own loops. Steps may have different loops
and may read the results of earlier steps. A `Total` reduces over all rows, and the `epilogue` stores what
depends on totals once all rows are done. If a stage has a `product`, the row of the matrix product is
computed before the first step.

Stages run one after another. A stage may read the tensors that earlier stages stored, but none that it stores
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from kernelpro.authors.playbook.algebra.graph_editor import Rewrite
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, LoopVar, iterations

ReduceKind = Literal["sum", "max", "min", "prod"]


@dataclass(frozen=True)
class Tensor:
    """A contiguous tensor of fixed shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["input", "parameter", "output", "temporary", "library"]
    """library: the result of a library call, which allocates it."""
    path: str = ""
    """Where an input or a parameter is found; see records.Node."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Guard:
    """The condition 0 <= index < size."""

    index: IndexExpr
    size: int


@dataclass(frozen=True)
class ReduceStep:
    """Reduces the elements of a row to one number."""

    name: str
    """The name under which later expressions refer to it: Expr("row", data=name)."""
    kind: ReduceKind
    value: Expr
    loops: Loops
    guards: tuple[Guard, ...] = ()
    """Elements that fail a guard are skipped; their value must not be computed."""


@dataclass(frozen=True)
class StoreStep:
    """Writes one element of a tensor for each iteration of its loops."""

    tensor: str
    index: IndexExpr
    value: Expr
    loops: Loops
    """Empty for one element a row."""
    guards: tuple[Guard, ...] = ()
    """Nothing is stored where a guard fails. Only convolutions as products have such stores, and only the
    Triton backend writes them."""


StageStep = ReduceStep | StoreStep


@dataclass(frozen=True)
class Total:
    """Reduces one number of each row over all rows."""

    name: str
    kind: ReduceKind
    value: Expr
    """The number of one row."""


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
    batch: Loops
    """The leading outer loops; the last outer loop is the row within a batch."""


@dataclass(frozen=True)
class Stage:
    """One loop nest; the module docstring defines its semantics."""

    outer: Loops
    steps: tuple[StageStep, ...]
    totals: tuple[Total, ...] = ()
    epilogue: tuple[StoreStep, ...] = ()
    product: MatrixProduct | None = None

    @property
    def rows(self) -> int:
        """The number of iterations of the outer loops."""
        return iterations(self.outer)

    @property
    def row_loops(self) -> Loops:
        """The loops of the step that covers the most elements of a row."""
        return max((step.loops for step in self.steps), key=iterations, default=())

    @property
    def row_width(self) -> int:
        """The largest number of elements that a step covers in a row."""
        return iterations(self.row_loops)

    @property
    def expressions(self) -> list[Expr]:
        """The roots of everything the stage computes."""
        roots = [part.value for part in (*self.steps, *self.epilogue, *self.totals)]
        return roots + ([self.product.left, self.product.right] if self.product else [])

    @property
    def reductions(self) -> tuple[ReduceStep, ...]:
        """The steps that reduce."""
        return tuple(step for step in self.steps if isinstance(step, ReduceStep))

    @property
    def stores(self) -> tuple[StoreStep, ...]:
        """The steps that store."""
        return tuple(step for step in self.steps if isinstance(step, StoreStep))

    @property
    def has_guarded_stores(self) -> bool:
        """Whether not every iteration stores."""
        return any(step.guards for step in self.stores)


@dataclass(frozen=True)
class LibraryCall:
    """An operator that torch computes, because its kernels are near the limit of the hardware already."""

    op: str
    """The function's name, such as conv2d."""
    tensor: str
    """Its result."""
    text: str
    """The Python expression; `{name}` stands for a tensor."""
    before: int
    """The stage before which it runs; the number of stages for a call after the last one."""


@dataclass(frozen=True)
class Program:
    """The stages of a task's operator graph."""

    tensors: tuple[Tensor, ...]
    """Inputs; all parameters, since a candidate must declare them; outputs in order; temporaries."""
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    single_output: bool
    """Whether the model returns a tensor instead of a tuple."""
    library_calls: tuple[LibraryCall, ...] = ()
    """In the order of execution."""
    rewrites: tuple[Rewrite, ...] = ()
    """The algebra that led from the task's graph to this program."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def loaded_tensors(self) -> frozenset[str]:
        """The tensors that stages load from."""
        roots = [root for stage in self.stages for root in stage.expressions]
        return frozenset(node.data[0] for node in nodes_of(roots, "load"))
