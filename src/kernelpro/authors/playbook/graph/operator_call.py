"""One operator of the graph as its reader sees it: arguments resolved, and short words for building values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.graph.values import Elementwise, IndexFunction, Value, View, reduce_dims
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, ExprBuilder
from kernelpro.records import Node

Result = Value | tuple[Value, ...]
Handler = Callable[["OperatorCall"], Result]

_ORDER = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class OperatorCall:
    """`get` takes an argument by place or by name; tensors come as values, everything else as it stands."""

    def __init__(self, node: Node, values: Mapping[str, Result]):
        self.node, self._values = node, values
        self.shape, self.dtype = node.shape, node.dtype
        self.overload = node.op.rpartition(".")[2]

    def get(self, place: int, name: str, default: Any = None) -> Any:
        if name in self.node.kwargs:
            return self._resolve(self.node.kwargs[name])
        return self._resolve(self.node.args[place]) if place < len(self.node.args) else default

    def value(self, place: int, name: str = "") -> Value:
        """A tensor; a number becomes one without dimensions."""
        found = self.get(place, name)
        return found if isinstance(found, Value) else scalar(found)

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, dict) and "value" in argument:
            return self._values[argument["value"]]
        if isinstance(argument, list):
            return [self._resolve(item) for item in argument]
        return _NUMBERS.get(argument, argument) if isinstance(argument, str) else argument

    def unsupported(self, why: str) -> NoProposal:
        return NoProposal(f"{self.node.op} {why}: outside the playbook's families")


def scalar(value: Any, dtype: str = "") -> Value:
    kind = dtype or ("bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32")
    return IndexFunction(lambda builder, indices: builder.const(value, kind), (), kind)


def promoted_dtype(values: Sequence[Value]) -> str:
    """The type in which values are compared; a number without dimensions widens only within the floating types' kind."""
    ranked = [v for v in values if v.shape] or list(values)
    dtype = max((v.dtype for v in ranked), key=_ORDER.index)
    if dtype not in FLOATING and any(v.dtype in FLOATING for v in values):
        return "float32"
    return dtype


def broadcast_shape(values: Sequence[Value]) -> tuple[int, ...]:
    rank = max((len(v.shape) for v in values), default=0)
    padded = [(1,) * (rank - len(v.shape)) + v.shape for v in values]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def elementwise(
    make: Callable[..., Expr], *sources: Value, dtype: str = "", shape: Sequence[int] | None = None
) -> Value:
    """`make(builder, *elements)` with the elements cast to the result's type, which is the widest unless it is given."""
    kind = dtype or promoted_dtype(sources)

    def cast(builder: ExprBuilder, *elements: Expr) -> Expr:
        return make(builder, *(builder.cast(element, kind) for element in elements))

    return Elementwise(cast, broadcast_shape(sources) if shape is None else shape, kind, sources)


def elementwise_uncast(make: Callable[..., Expr], *sources: Value, dtype: str) -> Value:
    """As `elementwise`, with elements of whatever type they are."""
    return Elementwise(make, broadcast_shape(sources), dtype, sources)


def op(name: str, *sources: Value, dtype: str = "") -> Value:
    return elementwise(lambda builder, *elements: builder.make(name, *elements), *sources, dtype=dtype)


def add(a: Value, b: Value | float) -> Value:
    return op("add", a, _value(b, a))


def sub(a: Value, b: Value | float) -> Value:
    return op("sub", a, _value(b, a))


def mul(a: Value, b: Value | float) -> Value:
    return op("mul", a, _value(b, a))


def div(a: Value, b: Value | float) -> Value:
    return op("div", a, _value(b, a))


def select(condition: Value, yes: Value, no: Value, dtype: str) -> Value:
    def make(builder: ExprBuilder, c: Expr, y: Expr, n: Expr) -> Expr:
        return builder.make("select", builder.cast(c, "bool"), builder.cast(y, dtype), builder.cast(n, dtype))

    return elementwise_uncast(make, condition, yes, no, dtype=dtype)


def compare(name: str, a: Value, b: Value) -> Value:
    kind = promoted_dtype([a, b])
    return elementwise_uncast(
        lambda builder, x, y: builder.make(name, builder.cast(x, kind), builder.cast(y, kind), dtype="bool"),
        a,
        b,
        dtype="bool",
    )


def convert(a: Value, dtype: str) -> Value:
    return (
        a
        if a.dtype == dtype
        else elementwise_uncast(lambda builder, x: builder.cast(x, dtype), a, dtype=dtype)
    )


def _value(given: Value | float, like: Value) -> Value:
    return given if isinstance(given, Value) else scalar(given, like.dtype)


def reduce(kind: Any, source: Value, dims: Sequence[int], keepdim: bool = False, dtype: str = "") -> Value:
    """Over some dimensions. Over all of several, first over the last one: rows can then be worked on at the same time."""
    rank = len(source.shape)
    dims = sorted(d % max(rank, 1) for d in dims) if dims else list(range(rank))
    dtype = dtype or source.dtype
    if not rank:
        return source
    whole: Value
    if len(dims) == rank and rank > 1:
        rows: Value = reduce_dims(kind, source, [rank - 1], dtype)
        whole = reduce_dims(kind, rows, range(rank - 1), dtype)
    elif len(dims) == rank and (width := _chunk(source.shape[0])):
        size = source.shape[0] // width
        split = View(source, (size, width), lambda indices: (indices[0] * width + indices[1],))
        whole = reduce_dims(kind, reduce_dims(kind, split, [1], dtype), [0], dtype)
    else:
        whole = reduce_dims(kind, source, dims, dtype)
    return with_kept_dims(whole, source.shape, dims) if keepdim else whole


def with_kept_dims(whole: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """A reduction's result with ones for the dimensions that it went over."""
    others = [d for d in range(len(shape)) if d not in dims]
    return View(
        whole,
        [1 if d in dims else s for d, s in enumerate(shape)],
        lambda indices: tuple(indices[d] for d in others),
    )


def _chunk(size: int) -> int:
    """A divisor near 4096, so that one long vector becomes rows; 0 where there is none."""
    return next((width for width in range(8192, 511, -1) if size % width == 0 and size > width), 0)
