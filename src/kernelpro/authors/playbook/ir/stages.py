"""A program of stages: the loop nests that a backend writes in its language.

    for row in outer loops (independent of each other):
        compute the row of `product`, if there is one
        for step in steps:
            ReduceStep:  r = reduction of value over the step's own loops
            StoreStep:   tensor[index] = value, for each iteration of the step's own loops
        combine the row's value into each Total
    for step in epilogue:
        tensor[index] = value

One iteration of the `outer` loops is called a row. Steps may have different loops, and may read the results
of earlier reductions. The `epilogue` stores values that depend on totals, after all rows.

Stages run one after another. A stage may read tensors that earlier stages stored, but none that it stores
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from kernelpro.authors.playbook.algebra.graph_editor import Rewrite
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, LoopVar, iterations

ReduceKind = Literal["sum", "max", "min", "prod"]

MAX_SHARED_BYTES = 232448
"""The most shared memory that a block can have on any GPU (227 KB)."""


@dataclass(frozen=True)
class Tensor:
    """A contiguous tensor of fixed shape."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Literal["input", "parameter", "output", "temporary", "library"]
    """`library` is the result of a library call, which allocates it."""
    path: str = ""
    """Where to find an input or a parameter; see records.Node."""

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
    """Elements that fail a guard are skipped. Their value must not be computed: it may load out of bounds."""


@dataclass(frozen=True)
class StoreStep:
    """Writes one element of a tensor for each iteration of its loops."""

    tensor: str
    index: IndexExpr
    value: Expr
    loops: Loops
    """Empty for one element per row."""
    guards: tuple[Guard, ...] = ()
    """Where a guard fails, nothing is stored. Only convolutions as tiled products have such stores, and only
    the GPU backends support them."""


StageStep = ReduceStep | StoreStep


@dataclass(frozen=True)
class Total:
    """Reduces one number of each row over all rows."""

    name: str
    kind: ReduceKind
    value: Expr
    """The contribution of one row."""


@dataclass(frozen=True)
class MatrixProduct:
    """For each column: the sum over the loops `depth` of left * right. A convolution is one too: its columns
    are its output channels, and each row is one position."""

    name: str
    left: Expr
    """Depends on the outer loops and on `depth`."""
    right: Expr
    """Depends on `batch`, `depth` and `column`, not on the row within a batch."""
    column: LoopVar
    depth: Loops
    batch: Loops
    """The leading outer loops. The other outer loops are the row within a batch."""
    guards: tuple[Guard, ...] = ()
    """Terms that fail a guard are skipped. The guards depend on what `left` depends on; its value must then
    not be computed. Only convolutions as tiled products have guards, only for the Triton backend."""


@dataclass(frozen=True)
class Stage:
    """One loop nest; the module docstring defines its semantics."""

    outer: Loops
    steps: tuple[StageStep, ...]
    totals: tuple[Total, ...] = ()
    epilogue: tuple[StoreStep, ...] = ()
    product: MatrixProduct | None = None
    max_shared_bytes: int = MAX_SHARED_BYTES
    """The most shared memory that a block may have on the device."""

    @property
    def rows(self) -> int:
        """The number of iterations of the outer loops."""
        return iterations(self.outer)

    @property
    def row_loops(self) -> Loops:
        """The loops of the step with the most elements per row."""
        return max((step.loops for step in self.steps), key=iterations, default=())

    @property
    def row_width(self) -> int:
        """The largest number of elements of a step in one row."""
        return iterations(self.row_loops)

    @property
    def expressions(self) -> list[Expr]:
        """The root expressions of everything that the stage computes."""
        roots = [part.value for part in (*self.steps, *self.epilogue, *self.totals)]
        return roots + ([self.product.left, self.product.right] if self.product else [])

    def map_expressions(self, change: Callable[[Expr], Expr]) -> Stage:
        """The stage with every root expression replaced by its result."""
        product = self.product
        if product:
            product = replace(product, left=change(product.left), right=change(product.right))
        return replace(
            self,
            steps=tuple(replace(step, value=change(step.value)) for step in self.steps),
            totals=tuple(replace(total, value=change(total.value)) for total in self.totals),
            epilogue=tuple(replace(step, value=change(step.value)) for step in self.epilogue),
            product=product,
        )

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
        """Whether some iterations store nothing."""
        return any(step.guards for step in self.stores)


@dataclass(frozen=True)
class LibraryCall:
    """An operator that torch computes, because its kernels are already near the limit of the hardware."""

    op: str
    """The function's name, such as conv2d."""
    tensor: str
    """The name of its result."""
    text: str
    """The Python expression; `{name}` stands for a tensor."""
    before: int
    """The position of the stage before which it runs; the number of stages if it runs last."""


@dataclass(frozen=True)
class Program:
    """The stages of a task's operator graph."""

    tensors: tuple[Tensor, ...]
    """Inputs and all parameters (a candidate must declare them), then outputs in order, then temporaries."""
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    single_output: bool
    """Whether the model returns a tensor instead of a tuple."""
    library_calls: tuple[LibraryCall, ...] = ()
    """Library calls in the order of execution."""
    rewrites: tuple[Rewrite, ...] = ()
    """The algebraic rewrites that led from the task's graph to this program."""

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def loaded_tensors(self) -> frozenset[str]:
        """The tensors that stages load from."""
        roots = [root for stage in self.stages for root in stage.expressions]
        return frozenset(node.data[0] for node in nodes_of(roots, "load"))
