"""A stage under construction: its loops, its steps so far, and attempts to fuse more values into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from kernelpro.authors.playbook.graph.values import (
    ConvolutionProduct,
    Indices,
    LoopSplitRequired,
    Matmul,
    Scan,
    Shape,
    StageValue,
    Value,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, nodes_of
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    Loops,
    LoopVar,
    flat_index,
    flatten,
    iterations,
    reshape,
    unflatten,
    variable,
)
from kernelpro.authors.playbook.ir.stages import Guard, MatrixProduct, Stage, StageStep, StoreStep, Total


class CannotFuse(Exception):
    """The stage cannot provide the requested element at these indices."""


class CannotSplit(CannotFuse):
    """A loop reads concatenated tensors in an order that prevents splitting it; `node` concatenates them."""

    def __init__(self, node: str):
        super().__init__(node)
        self.node = node


@dataclass
class StageBuilder:
    """Collects the steps of a stage. Steps over the same shape use the same loops, so that they can share a
    pass over the row."""

    position: int
    """Position among the stages of the program."""
    outer: Loops
    builder: ExprBuilder
    is_library: bool = False
    """Whether the stage is empty and only marks the position of a library call."""
    steps: list[StageStep] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    epilogue: list[StoreStep] = field(default_factory=list)
    product: MatrixProduct | None = None
    results: dict[StageValue, Expr] = field(default_factory=dict)
    """The reductions it computes: a `row` expression for each, or a `total` for one over all rows."""
    domains: list[tuple[Shape, Indices, Loops]] = field(default_factory=list)
    """The tensors that the stage iterates over: shape, the index of each dimension, and the inner loops."""
    reordered: tuple[Indices, Shape] | None = None
    """If rows have another order than their results (PhasedReduction): the indices of the current row's
    result, and the shape of the results. There may be more rows than results."""
    store_guards: tuple[Guard, ...] = ()
    """Rows that fail a guard lie beyond the result and store nothing."""
    phases: list[StageBuilder] = field(default_factory=list)
    """The stages of all phases of one tensor, this one among them (Interleaved)."""
    reduced_domains: set[tuple[Shape, Shape]] = field(default_factory=set)
    """The domains of its reductions; see values.Reduction."""
    _loops: dict[Shape, Loops] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows that have a result."""
        return prod(self.reordered[1]) if self.reordered else iterations(self.outer)

    @property
    def row(self) -> IndexExpr:
        """The position of the current row's result."""
        return flatten(*self.reordered) if self.reordered else flat_index(self.outer)

    def row_indices(self, shape: Shape) -> Indices:
        """The indices of the current row's result, if the results have this shape."""
        return reshape(*self.reordered, shape) if self.reordered else unflatten(self.row, shape)

    def loops_over(self, shape: Shape) -> Loops:
        """Inner loops with these extents; always the same loops for the same extents."""
        if shape not in self._loops:
            number = len(self._loops)
            self._loops[shape] = tuple(LoopVar(f"i{number}_{d}", size) for d, size in enumerate(shape))
        return self._loops[shape]

    def mappings(self, shape: Shape) -> Iterator[tuple[Indices, Loops]]:
        """Ways to iterate over a tensor of that shape row by row (indices, inner loops), the best first."""
        for known, indices, loops in self.domains:
            if known == shape:
                yield indices, loops
        if self.reordered and not self.product:
            return
        if prod(shape) == self.rows:
            yield self.row_indices(shape), ()
        if not self.reordered and self.rows > 1 and prod(shape) % self.rows == 0:
            width = prod(shape) // self.rows
            lead = next((k for k in range(len(shape)) if prod(shape[:k]) == self.rows), None)
            inner = [extents for extents in list(self._loops) if prod(extents) == width]
            inner += [shape[lead:]] if lead is not None and shape[lead:] not in inner else []
            for extents in inner:
                loops = self.loops_over(extents)
                yield unflatten(self.row * width + flat_index(loops), shape), loops

    def stage(self) -> Stage:
        """The finished stage."""
        return Stage(self.outer, tuple(self.steps), tuple(self.totals), tuple(self.epilogue), self.product)


class FusionAttempt:
    """The LoweringContext of one attempt to fuse a value into a stage. It only records what the value needs;
    the caller applies this if the whole value can be fused."""

    def __init__(
        self,
        stage: StageBuilder,
        stage_of: Callable[[StageValue], StageBuilder],
        temporary_name: Callable[[StageValue], str],
        loops: Loops = (),
    ):
        self.builder = stage.builder
        self._stage, self._stage_of, self._temporary_name, self._loops = (
            stage,
            stage_of,
            temporary_name,
            loops,
        )
        self.in_epilogue = False
        """Whether the value is computed after all rows: totals are available, per-row results are not."""
        self.used_values: set[StageValue] = set()
        """Values of this stage that were used."""
        self.required_temporaries: list[StageValue] = []
        """Values of earlier stages that must be stored."""
        self._elements: dict[tuple[int, Indices], Expr] = {}

    def element(self, value: Value, indices: Indices) -> Expr:
        """One element of a value."""
        key = id(value), indices
        if key not in self._elements:
            self._elements[key] = value.at(indices, self)
        return self._elements[key]

    def stage_value(self, value: StageValue, indices: Indices) -> Expr:
        """A result of this stage, or a load from a temporary of an earlier one. Raises CannotFuse if neither
        has it."""
        home = self._stage_of(value)
        if home is self._stage:
            result = self._local_value(value, indices)
            self.used_values.add(value)
            return result
        if home.position > self._stage.position:
            raise CannotFuse
        self.required_temporaries.append(value)
        data = (self._temporary_name(value), flatten(indices, value.shape))
        return self.builder.make("load", dtype=value.dtype, data=data)

    def _local_value(self, value: StageValue, indices: Indices) -> Expr:
        stage = self._stage
        if value in stage.results:
            result = stage.results[value]
            is_total = result.op == "total"
            same_row = is_total or flatten(indices, value.shape) == stage.row
            if is_total != self.in_epilogue or not same_row:
                raise CannotFuse
            return result
        if self.in_epilogue:
            raise CannotFuse
        if isinstance(value, Scan):
            return self._scan(value, indices)
        if stage.product and isinstance(value, (Matmul, ConvolutionProduct)):
            dim = value.column_dim % len(indices)
            others = (*indices[:dim], *indices[dim + 1 :])
            if flatten(others, (*value.shape[:dim], *value.shape[dim + 1 :])) == stage.row:
                data = stage.product.name, indices[dim]
                return self.builder.make("product", dtype=value.dtype, data=data)
        raise CannotFuse

    def _scan(self, value: Scan, indices: Indices) -> Expr:
        others = (*indices[: value.dim], *indices[value.dim + 1 :])
        sizes = (*value.shape[: value.dim], *value.shape[value.dim + 1 :])
        if len(self._loops) != 1 or indices[value.dim] != variable(self._loops[0]):
            raise CannotFuse
        if flatten(others, sizes) != self._stage.row:
            raise CannotFuse
        operand = self.element(value.sources[0], indices)
        if nodes_of([operand], "scan"):
            raise CannotFuse
        return self.builder.make("scan", operand, dtype=value.dtype, data=(value.kind, self._loops[0]))


def build_with_loop_splits(
    loops: Loops, build: Callable[[Indices, Loops], Expr]
) -> list[tuple[Expr, Indices, Loops]]:
    """The results of `build`: one for the whole loops, or one for each part if concatenated sources require a
    split. Each result comes with its indices and loops."""
    pending = [(tuple(variable(var) for var in loops), loops)]
    parts = []
    while pending:
        indices, part_loops = pending.pop(0)
        try:
            parts.append((build(indices, part_loops), indices, part_loops))
        except LoopSplitRequired as split:
            var, bound = find_split(split, part_loops)
            for start, size in ((0, bound), (bound, var.extent - bound)):
                # named by size: equal halves get the same loop, and so share a pass
                part = LoopVar(f"{var.name}_{size}", size)
                moved = {var: variable(part) + start}
                pending.append(
                    (
                        tuple(
                            index.substitute(moved) if own == var else index
                            for index, own in zip(indices, part_loops, strict=True)
                        ),
                        tuple(part if own == var else own for own in part_loops),
                    )
                )
    return parts


def find_split(split: LoopSplitRequired, loops: Sequence[LoopVar]) -> tuple[LoopVar, int]:
    """The loop to split, and where. Raises CannotSplit unless the index is a loop variable plus a
    constant."""
    if len(split.index.terms) == 1:
        ((var, factor),) = split.index.terms
        bound = split.bound - split.index.constant
        if factor == 1 and isinstance(var, LoopVar) and var in loops and 0 < bound < var.extent:
            return var, bound
    raise CannotSplit(split.node)
