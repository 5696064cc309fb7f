"""Builds values from values: arithmetic, comparison, conversion and reduction, with torch's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelpro.authors.playbook.graph.values import (
    Elementwise,
    IndexFunction,
    Indices,
    Value,
    View,
    reduce_dims,
)
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, ExprBuilder
from kernelpro.authors.playbook.ir.stages import ReduceKind

_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""In order of promotion."""


def scalar(value: Any, dtype: str = "") -> Value:
    """A number as a zero-dimensional value."""
    kind = dtype or ("bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32")
    return IndexFunction(lambda builder, indices: builder.const(value, kind), (), kind)


def promoted_dtype(values: Sequence[Value]) -> str:
    """The type in which values are combined. As in torch, a zero-dimensional value does not widen the type of
    the others, except from integer to float32."""
    dimensioned = [v for v in values if v.shape] or list(values)
    dtype = max((v.dtype for v in dimensioned), key=_DTYPES.index)
    if dtype not in FLOATING and any(v.dtype in FLOATING for v in values):
        return "float32"
    return dtype


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape to which these shapes broadcast."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def elementwise(make: Callable[..., Expr], *sources: Value, dtype: str = "") -> Value:
    """`make(builder, *elements)` for each element. The elements are cast to the type of the result, by
    default the promoted type of the sources."""
    kind = dtype or promoted_dtype(sources)

    def cast(builder: ExprBuilder, *elements: Expr) -> Expr:
        return make(builder, *(builder.cast(element, kind) for element in elements))

    return elementwise_uncast(cast, *sources, dtype=kind)


def elementwise_uncast(make: Callable[..., Expr], *sources: Value, dtype: str) -> Value:
    """Like `elementwise`, but the elements keep their types."""
    return Elementwise(make, broadcast_shape([source.shape for source in sources]), dtype, sources)


def op(name: str, *sources: Value, dtype: str = "") -> Value:
    """An operation of ir/expressions.py, element by element."""
    return elementwise(lambda builder, *elements: builder.make(name, *elements), *sources, dtype=dtype)


def add(a: Value, b: Value | float) -> Value:
    """a + b."""
    return op("add", a, _as_value(b, a))


def sub(a: Value, b: Value | float) -> Value:
    """a - b."""
    return op("sub", a, _as_value(b, a))


def mul(a: Value, b: Value | float) -> Value:
    """a * b."""
    return op("mul", a, _as_value(b, a))


def div(a: Value, b: Value | float) -> Value:
    """a / b."""
    return op("div", a, _as_value(b, a))


def select(condition: Value, if_true: Value, if_false: Value, dtype: str) -> Value:
    """if_true where the condition holds, else if_false."""

    def make(builder: ExprBuilder, c: Expr, t: Expr, f: Expr) -> Expr:
        return builder.make("select", builder.cast(c, "bool"), builder.cast(t, dtype), builder.cast(f, dtype))

    return elementwise_uncast(make, condition, if_true, if_false, dtype=dtype)


def compare(name: str, a: Value, b: Value) -> Value:
    """A comparison (lt, le, gt, ge, eq, ne) in the promoted type."""
    kind = promoted_dtype([a, b])

    def make(builder: ExprBuilder, x: Expr, y: Expr) -> Expr:
        return builder.make(name, builder.cast(x, kind), builder.cast(y, kind), dtype="bool")

    return elementwise_uncast(make, a, b, dtype="bool")


def convert(value: Value, dtype: str) -> Value:
    """The value in another type."""
    if value.dtype == dtype:
        return value
    return elementwise_uncast(lambda builder, x: builder.cast(x, dtype), value, dtype=dtype)


def index_along(shape: Sequence[int], dim: int) -> Value:
    """The index along one dimension of a tensor of that shape."""
    return IndexFunction(
        lambda builder, indices: builder.make("index", dtype="int64", data=indices[dim]), shape, "int64"
    )


def triangle(shape: Sequence[int], lower: bool, diagonal: int = 0) -> Value:
    """A mask over the last two dimensions: True inside the triangle, as torch.tril and torch.triu define
    it."""

    def make(builder: ExprBuilder, indices: Indices) -> Expr:
        offset = builder.make("index", dtype="int64", data=indices[-1] - indices[-2])
        return builder.make("le" if lower else "ge", offset, builder.const(diagonal, "int64"), dtype="bool")

    return IndexFunction(make, shape, "bool")


def _as_value(operand: Value | float, like: Value) -> Value:
    return operand if isinstance(operand, Value) else scalar(operand, like.dtype)


def reduce(kind: ReduceKind, source: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """A reduction over `dims`, or over all dimensions if `dims` is empty.

    A reduction of all elements has two levels, so that the rows of the first run in parallel: the last
    dimension (or chunks of a vector), then the results.
    """
    rank = len(source.shape)
    if not rank:
        return source
    dims = sorted(d % rank for d in dims) if dims else list(range(rank))
    if len(dims) == rank and rank > 1:
        reduced = reduce_dims(kind, reduce_dims(kind, source, [rank - 1]), range(rank - 1))
    elif len(dims) == rank and (width := _chunk(source.shape[0])):
        shape = (source.shape[0] // width, width)
        chunks = View(source, shape, lambda indices: (indices[0] * width + indices[1],))
        reduced = reduce_dims(kind, reduce_dims(kind, chunks, [1]), [0])
    else:
        reduced = reduce_dims(kind, source, dims)
    if not keepdim:
        return reduced
    others = [d for d in range(rank) if d not in dims]
    shape_kept = [1 if d in dims else size for d, size in enumerate(source.shape)]
    return View(reduced, shape_kept, lambda indices: tuple(indices[d] for d in others))


def _chunk(size: int) -> int:
    """The length of the chunks of a long vector: its largest divisor from 512 to 8192; 0 if there is none."""
    return next((width for width in range(8192, 511, -1) if size % width == 0 and size > width), 0)
