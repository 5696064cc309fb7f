"""Lazy values: each node of the graph is a value that returns, on request, the expression of one element.

Element-wise operators, broadcasts and views return an expression of their sources' elements: this fuses them
into their consumers, without a loop of their own. A StageValue (a reduction, scan, matrix product, library
result or materialized value) is computed by a stage; consumers get its elements from
`LoweringContext.stage_value`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import IndexExpr, constant, flatten, indirect
from kernelpro.authors.playbook.ir.stages import Guard, ReduceKind

Indices = tuple[IndexExpr, ...]
Shape = tuple[int, ...]


class LoweringContext(Protocol):
    """The consumer of elements: in practice a stage under construction."""

    builder: ExprBuilder

    def element(self, value: Value, indices: Indices) -> Expr:
        """One element of a value."""

    def stage_value(self, value: StageValue, indices: Indices) -> Expr:
        """One element of a value that a stage computes."""


class LoopSplitRequired(Exception):
    """The element at `index` has one source below `bound`, and another one from `bound` on. The consumer must
    split its loop there, or the result of the concatenating operator `node` must be stored first."""

    def __init__(self, index: IndexExpr, bound: int, node: str):
        super().__init__(f"{index} crosses {bound}")
        self.index, self.bound, self.node = index, bound, node


class Value(ABC):
    """A tensor of the graph; `sources` are the values that its elements depend on."""

    def __init__(self, shape: Sequence[int], dtype: str, sources: Sequence[Value] = ()):
        self.shape, self.dtype, self.sources = tuple(shape), dtype, tuple(sources)

    @abstractmethod
    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """The element at these indices."""


class InputValue(Value):
    """An input or a parameter."""

    def __init__(self, name: str, shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype)
        self.name = name

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        return context.builder.make("load", dtype=self.dtype, data=(self.name, flatten(indices, self.shape)))


class Elementwise(Value):
    """`make` applied to the elements of the sources, which are broadcast to `shape`."""

    def __init__(self, make: Callable[..., Expr], shape: Sequence[int], dtype: str, sources: Sequence[Value]):
        super().__init__(shape, dtype, sources)
        self._make = make

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        elements = (context.element(s, broadcast_indices(indices, s.shape)) for s in self.sources)
        return self._make(context.builder, *elements)


class View(Value):
    """The source at indices that `remap` computes. `method` is the call on a tensor that returns the same
    view, such as `.permute(1, 0)`, if there is one."""

    def __init__(
        self, source: Value, shape: Sequence[int], remap: Callable[[Indices], Indices], method: str = ""
    ):
        super().__init__(shape, source.dtype, [source])
        self._remap, self.method = remap, method

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        return context.element(self.sources[0], self._remap(indices))


class IndexFunction(Value):
    """A function of the indices alone, such as arange or a triangular mask."""

    def __init__(self, make: Callable[[ExprBuilder, Indices], Expr], shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype)
        self._make = make

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        return self._make(context.builder, indices)


class Gather(Value):
    """The source with its index along `dim` read from another tensor.

    `same_rank`: the index tensor has the shape of the result (torch.gather). Otherwise its dimensions replace
    `dim` of the source (torch.index_select and embeddings).
    """

    def __init__(self, source: Value, index: Value, dim: int, same_rank: bool = False):
        shape = index.shape if same_rank else (*source.shape[:dim], *index.shape, *source.shape[dim + 1 :])
        super().__init__(shape, source.dtype, [source, index])
        self._dim, self._same_rank = dim, same_rank

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        source, index = self.sources
        end = self._dim + (1 if self._same_rank else len(index.shape))
        position = context.element(index, indices if self._same_rank else indices[self._dim : end])
        gathered = indirect(context.builder.cast(position, "int64"), source.shape[self._dim])
        return context.element(source, (*indices[: self._dim], gathered, *indices[end:]))


class Concat(Value):
    """The sources one after another along one dimension."""

    def __init__(self, sources: Sequence[Value], dim: int, shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype, sources)
        self._dim, self.node = dim, ""
        """node: the operator of the graph that concatenates."""

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        low, high = indices[self._dim].bounds
        start = 0
        for source in self.sources:
            end = start + source.shape[self._dim]
            if low >= start and high < end:
                shifted = (*indices[: self._dim], indices[self._dim] - start, *indices[self._dim + 1 :])
                return context.builder.cast(context.element(source, shifted), self.dtype)
            if start <= low < end:
                raise LoopSplitRequired(indices[self._dim], end, self.node)
            start = end
        raise AssertionError(f"{indices[self._dim]} lies outside {self.shape}")


class ZeroPadded(View):
    """A zero-padded source. A consumer with guards, such as a convolution, may read `source` instead and skip
    the padding."""

    def __init__(self, padded: Value, source: Value, leading: Sequence[int]):
        super().__init__(padded, padded.shape, lambda indices: indices)
        self.source, self.leading = source, tuple(leading)
        """leading: how many zeros precede the source in each dimension."""


class StageValue(Value):
    """A value that a stage computes in loops of its own."""

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices."""
        return context.stage_value(self, indices)


class Reduction(StageValue):
    """For each index into `shape`: the reduction of `body(outer indices, inner indices, context)` over the
    shape `inner`. Elements that fail a guard are skipped."""

    def __init__(
        self,
        kind: ReduceKind,
        shape: Sequence[int],
        inner: Sequence[int],
        dtype: str,
        sources: Sequence[Value],
        body: Callable[[Indices, Indices, LoweringContext], Expr],
        guards: Callable[[Indices, Indices], tuple[Guard, ...]] = lambda outer, inner: (),
        domain: tuple[Shape, Shape] | None = None,
    ):
        super().__init__(shape, dtype, sources)
        self.kind, self.inner, self.body, self.guards, self.domain = kind, tuple(inner), body, guards, domain
        """domain: for a reduction over dimensions of one tensor, the tensor's shape and the dimensions."""


class PhasedReduction(Reduction):
    """A sum whose results are computed in another order than they are stored. `loops` are the extents of its
    loops, and `positions` maps loop indices to indices into the result. Iterations whose position lies beyond
    the result store nothing."""

    def __init__(
        self,
        shape: Sequence[int],
        loops: Sequence[int],
        inner: Sequence[int],
        dtype: str,
        sources: Sequence[Value],
        body: Callable[[Indices, Indices, LoweringContext], Expr],
        guards: Callable[[Indices, Indices], tuple[Guard, ...]],
        positions: Callable[[Indices], Indices],
    ):
        super().__init__("sum", shape, inner, dtype, sources, body, guards)
        self.loops, self.positions = tuple(loops), positions
        self.siblings: tuple[PhasedReduction, ...] = ()
        """All phases of the tensor, if this is one of several (Interleaved)."""


class ConvolutionProduct(PhasedReduction):
    """A convolution as a matrix product: a row has all channels of one position, so that reductions over the
    channels join its stage. `loops`: phases, if the convolution is transposed, then batch, channels and
    positions. `body` multiplies the input with the weights."""

    column_dim = 1
    """The dimension of the result that is the columns of the product."""

    @property
    def phase_count(self) -> int:
        """The number of loops over phases, which come first."""
        return len(self.loops) - len(self.shape)


class Interleaved(Value):
    """The phases of one tensor, each a reduction that computes every `strides[d]`-th element of each spatial
    dimension. `node` is the operator of the graph that it comes from."""

    def __init__(self, phases: Sequence[PhasedReduction], strides: Sequence[int], node: str):
        super().__init__(phases[0].shape, phases[0].dtype, phases)
        self._strides, self._node = tuple(strides), node
        self._by_remainder: dict[Indices, PhasedReduction] = {}
        for phase in phases:
            phase.siblings = tuple(phases)
            first = phase.positions((constant(0),) * len(phase.loops))
            self._by_remainder[self._remainders(first)] = phase

    def _remainders(self, indices: Indices) -> Indices:
        return tuple(i % s for i, s in zip(indices[2:], self._strides, strict=True))

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        """Return the element at these indices, which must lie in one phase."""
        phase = self._by_remainder.get(self._remainders(indices))
        if phase is None:
            raise LoopSplitRequired(constant(0), 0, self._node)
        return context.element(phase, indices)


class Scan(StageValue):
    """The running sum, product, maximum or minimum of its source along `dim`."""

    def __init__(self, kind: ReduceKind, source: Value, dim: int):
        super().__init__(source.shape, source.dtype, [source])
        self.kind, self.dim = kind, dim


class Matmul(StageValue):
    """(batch, rows, depth) times (batch, depth, columns); both sources have the same batch dimensions."""

    column_dim = -1
    """The dimension of the result that is the columns of the product."""

    def __init__(self, left: Value, right: Value):
        super().__init__((*left.shape[:-1], right.shape[-1]), left.dtype, [left, right])


class Materialized(StageValue):
    """The source, computed once and stored in memory, because it is read many times."""

    def __init__(self, source: Value):
        super().__init__(source.shape, source.dtype, [source])


class LibraryResult(StageValue):
    """The result of a library call. `text` is the call, with {0}, {1}, ... for the sources."""

    def __init__(self, op: str, text: str, shape: Sequence[int], dtype: str, sources: Sequence[Value]):
        super().__init__(shape, dtype, sources)
        self.op, self.text = op, text


def broadcast_indices(indices: Indices, shape: Sequence[int]) -> Indices:
    """Indices into a source of this shape that is broadcast: drops leading dimensions; 0 where a size is
    1."""
    trailing = indices[len(indices) - len(shape) :]
    return tuple(constant(0) if size == 1 else index for index, size in zip(trailing, shape, strict=True))


def reduce_dims(kind: ReduceKind, source: Value, dims: Sequence[int]) -> Reduction:
    """A reduction over some dimensions, which the result does not have."""
    rank, dims = len(source.shape), tuple(sorted(dims))
    others = [d for d in range(rank) if d not in dims]

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        index_of = dict(zip((*others, *dims), (*outer, *inner), strict=True))
        element = context.element(source, tuple(index_of[d] for d in range(rank)))
        return context.builder.cast(element, source.dtype)

    shape, inner = [source.shape[d] for d in others], [source.shape[d] for d in dims]
    return Reduction(kind, shape, inner, source.dtype, [source], body, domain=(source.shape, dims))


def materialize_unless_input(value: Value) -> Value:
    """The value itself if it is a view of an input or of a library result; otherwise materialized."""
    base = value
    while isinstance(base, View):
        base = base.sources[0]
    return value if isinstance(base, (InputValue, LibraryResult)) else Materialized(value)


def materialize_if_staged(value: Value) -> Value:
    """The value itself if it depends on no stage, or only on stored results; otherwise materialized."""
    stack, visited = [value], set[int]()
    while stack:
        source = stack.pop()
        if isinstance(source, (Materialized, LibraryResult)) or id(source) in visited:
            continue
        if isinstance(source, StageValue):
            return Materialized(value)
        visited.add(id(source))
        stack += source.sources
    return value
