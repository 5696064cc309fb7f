"""Values of a graph, not yet computed: each says what one of its elements is when it is asked.

Element-wise operators, broadcasts and views answer with an expression of what they are made of, so that they vanish into
whoever asks. Anchors (reductions, scans, products) are computed by a stage; who asks is told by `Asking.anchor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import IndexExpr, constant, flatten
from kernelpro.authors.playbook.ir.stages import Guard, ReduceKind

Indices = tuple[IndexExpr, ...]


class LoweringContext(Protocol):
    """Whoever wants elements: a stage that is being put together."""

    builder: ExprBuilder

    def element(self, value: Value, indices: Indices) -> Expr: ...

    def stage_value(self, value: StageValue, indices: Indices) -> Expr: ...


class LoopSplitRequired(Exception):
    """The element at `index` comes from one of two places, below and from `bound` on: the asker must split its loop."""

    def __init__(self, index: IndexExpr, bound: int):
        super().__init__(f"{index} straddles {bound}")
        self.index, self.bound = index, bound


class Value(ABC):
    """`sources` are the values that its elements are made of."""

    def __init__(self, shape: Sequence[int], dtype: str, sources: Sequence[Value] = ()):
        self.shape, self.dtype, self.sources = tuple(shape), dtype, tuple(sources)

    @abstractmethod
    def at(self, indices: Indices, context: LoweringContext) -> Expr: ...


class InputValue(Value):
    """An input or a parameter."""

    def __init__(self, name: str, shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype)
        self.name = name

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return context.builder.make("load", dtype=self.dtype, data=(self.name, flatten(indices, self.shape)))


class Elementwise(Value):
    """`make` puts the elements of the sources together; sources are broadcast."""

    def __init__(self, make: Callable[..., Expr], shape: Sequence[int], dtype: str, sources: Sequence[Value]):
        super().__init__(shape, dtype, sources)
        self._make = make

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return self._make(
            context.builder,
            *(context.element(source, broadcast_indices(indices, source.shape)) for source in self.sources),
        )


class View(Value):
    """The source, asked at other indices."""

    def __init__(self, source: Value, shape: Sequence[int], remap: Callable[[Indices], Indices]):
        super().__init__(shape, source.dtype, [source])
        self._remap = remap

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return context.element(self.sources[0], self._remap(indices))


class IndexFunction(Value):
    """A number made of the indices themselves, as arange and triangles are."""

    def __init__(self, make: Callable[[ExprBuilder, Indices], Expr], shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype)
        self._make = make

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return self._make(context.builder, indices)


class Gather(Value):
    """The source, at an index that is the value of another tensor: `remap` is given the index to use."""

    def __init__(
        self,
        source: Value,
        where: Value,
        shape: Sequence[int],
        remap: Callable[[Indices, LoweringContext], Indices],
    ):
        super().__init__(shape, source.dtype, [source, where])
        self._remap = remap

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return context.element(self.sources[0], self._remap(indices, context))


class Concat(Value):
    """Several values behind each other along one dimension."""

    def __init__(self, sources: Sequence[Value], dim: int, shape: Sequence[int], dtype: str):
        super().__init__(shape, dtype, sources)
        self._dim = dim

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        low, high = indices[self._dim].bounds
        start = 0
        for source in self.sources:
            end = start + source.shape[self._dim]
            if low >= start and high < end:
                own = (*indices[: self._dim], indices[self._dim] - start, *indices[self._dim + 1 :])
                return context.builder.cast(context.element(source, own), self.dtype)
            if start <= low < end:
                raise LoopSplitRequired(indices[self._dim], end)
            start = end
        raise AssertionError(f"{indices[self._dim]} lies outside {self.shape}")


class ZeroPadded(View):
    """With zeros around it, for those who can leave them out: what is inside, and how many come before it in each dimension."""

    def __init__(self, whole: Value, inside: Value, before: Sequence[int]):
        super().__init__(whole, whole.shape, lambda indices: indices)
        self.source, self.leading = inside, tuple(before)


class StageValue(Value):
    """Computed by a stage, in loops of its own."""

    def at(self, indices: Indices, context: LoweringContext) -> Expr:
        return context.stage_value(self, indices)


class Reduction(StageValue):
    """One number for each turn of `shape`, made of the elements of `inner`."""

    def __init__(
        self,
        kind: ReduceKind,
        shape: Sequence[int],
        inner: Sequence[int],
        dtype: str,
        sources: Sequence[Value],
        body: Callable[[Indices, Indices, LoweringContext], Expr],
        guards: Callable[[Indices, Indices], tuple[Guard, ...]] = lambda outer, inner: (),
        domain: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ):
        super().__init__(shape, dtype, sources)
        self.kind, self.inner, self.body, self.guards, self.domain = kind, tuple(inner), body, guards, domain
        """domain: of a reduction over dimensions of one tensor, that tensor's shape and those dimensions."""


class Scan(StageValue):
    """The running sum, product, maximum or minimum of its source along `dim`."""

    def __init__(self, kind: ReduceKind, source: Value, dim: int):
        super().__init__(source.shape, source.dtype, [source])
        self.kind, self.dim = kind, dim


class Matmul(StageValue):
    """batch x rows x depth times batch x depth x columns; both sources have the same batch dimensions."""

    def __init__(self, left: Value, right: Value):
        super().__init__((*left.shape[:-1], right.shape[-1]), left.dtype, [left, right])


def broadcast_indices(indices: Indices, shape: Sequence[int]) -> Indices:
    """The indices of a broadcast source: no leading ones, 0 where its size is 1."""
    own = indices[len(indices) - len(shape) :]
    return tuple(constant(0) if size == 1 else index for index, size in zip(own, shape, strict=True))


def reduce_dims(kind: ReduceKind, source: Value, dims: Sequence[int], dtype: str) -> Reduction:
    """A reduction over some dimensions; its shape has the others."""
    dims = tuple(sorted(d % max(len(source.shape), 1) for d in dims))
    kept = [d for d in range(len(source.shape)) if d not in dims]

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        at = dict(zip(kept, outer, strict=True)) | dict(zip(dims, inner, strict=True))
        return context.builder.cast(
            context.element(source, tuple(at[d] for d in range(len(source.shape)))), dtype
        )

    shape, inner = [source.shape[d] for d in kept], [source.shape[d] for d in dims]
    return Reduction(kind, shape, inner, dtype, [source], body, domain=(source.shape, dims))


class Materialized(StageValue):
    """The source, computed once and kept in memory: for values that are read many times over."""

    def __init__(self, source: Value):
        super().__init__(source.shape, source.dtype, [source])


def materialize_unless_input(value: Value) -> Value:
    """The value if reading it is no work, else stored."""
    inner = value
    while isinstance(inner, View):
        inner = inner.sources[0]
    return value if isinstance(inner, InputValue) else Materialized(value)


def materialize_if_staged(value: Value) -> Value:
    """The value if it is made of what is given alone, else stored."""
    waiting, done = [value], set[int]()
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, StageValue) and not isinstance(inner, Materialized):
            return Materialized(value)
        if id(inner) not in done and not isinstance(inner, Materialized):
            done.add(id(inner))
            waiting += inner.sources
    return value
