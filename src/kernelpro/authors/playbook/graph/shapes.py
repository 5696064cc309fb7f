"""Views, copies, joins, lookups and tensors made from nothing: operators that compute no number."""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.authors.playbook.graph.operator_call import (
    Handler,
    OperatorCall,
    broadcast_shape,
    convert,
    scalar,
    select,
)
from kernelpro.authors.playbook.graph.values import (
    Concat,
    Gather,
    IndexFunction,
    Indices,
    LoweringContext,
    Value,
    View,
    ZeroPadded,
    broadcast_indices,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import constant, indirect, reshape


def reshaped(source: Value, shape: Sequence[int]) -> Value:
    return View(source, shape, lambda indices: reshape(indices, shape, source.shape))


def permuted(source: Value, dims: Sequence[int]) -> Value:
    dims = [d % len(source.shape) for d in dims]
    return View(
        source,
        [source.shape[d] for d in dims],
        lambda indices: tuple(indices[dims.index(d)] for d in range(len(dims))),
    )


def sliced(source: Value, dim: int, start: int, size: int, step: int) -> Value:
    shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])
    return View(
        source, shape, lambda indices: (*indices[:dim], indices[dim] * step + start, *indices[dim + 1 :])
    )


def selected(source: Value, dim: int, at: int) -> Value:
    shape = (*source.shape[:dim], *source.shape[dim + 1 :])
    return View(source, shape, lambda indices: (*indices[:dim], constant(at), *indices[dim:]))


def expanded(source: Value, shape: Sequence[int]) -> Value:
    return View(source, shape, lambda indices: broadcast_indices(indices, source.shape))


def _same(call: OperatorCall) -> Value:
    return convert(call.value(0), call.dtype)


def _reshape(call: OperatorCall) -> Value:
    return reshaped(call.value(0), call.shape)


def _expand(call: OperatorCall) -> Value:
    return expanded(call.value(0), call.shape)


def _permute(call: OperatorCall) -> Value:
    return permuted(call.value(0), call.get(1, "dims"))


def _transpose(call: OperatorCall) -> Value:
    source = call.value(0)
    dims = list(range(len(source.shape)))
    if len(dims) > 1:
        a, b = call.get(1, "dim0", -2), call.get(2, "dim1", -1)
        dims[a], dims[b] = dims[b], dims[a]
    return permuted(source, dims)


def _reversed(call: OperatorCall) -> Value:
    return permuted(call.value(0), range(len(call.shape) - 1, -1, -1))


def _select(call: OperatorCall) -> Value:
    source = call.value(0)
    dim, at = call.get(1, "dim") % len(source.shape), call.get(2, "index")
    return selected(source, dim, at % source.shape[dim])


def _slice(call: OperatorCall) -> Value:
    source = call.value(0)
    dim = call.get(1, "dim", 0) % len(source.shape)
    size = source.shape[dim]
    start = call.get(2, "start", 0) or 0
    start = max(0, min(size, start + size if start < 0 else start))
    return sliced(source, dim, start, call.shape[dim], call.get(4, "step", 1))


def _split(call: OperatorCall) -> tuple[Value, ...]:
    source, sizes = call.value(0), call.get(1, "split_size")
    dim = call.get(2, "dim", 0) % len(source.shape)
    size = source.shape[dim]
    if call.node.op.startswith("aten.chunk"):
        sizes = -(-size // sizes)
    if isinstance(sizes, int):
        sizes = [min(sizes, size - start) for start in range(0, size, sizes)]
    return tuple(sliced(source, dim, sum(sizes[:i]), part, 1) for i, part in enumerate(sizes))


def _unbind(call: OperatorCall) -> tuple[Value, ...]:
    source = call.value(0)
    dim = call.get(1, "dim", 0) % len(source.shape)
    return tuple(selected(source, dim, i) for i in range(source.shape[dim]))


def _getitem(call: OperatorCall) -> Value:
    several, place = call.get(0, "self"), call.get(1, "index")
    if place >= len(several):
        raise call.unsupported(
            f"takes result {place} of an operator of which the playbook knows {len(several)}"
        )
    found = several[place]
    assert isinstance(found, Value)
    return found


def _broadcast_tensors(call: OperatorCall) -> tuple[Value, ...]:
    values = call.get(0, "tensors")
    return tuple(expanded(value, broadcast_shape(values)) for value in values)


def _flip(call: OperatorCall) -> Value:
    source = call.value(0)
    dims = [d % len(source.shape) for d in call.get(1, "dims")]

    def remap(indices: Indices) -> Indices:
        return tuple(i * -1 + (source.shape[d] - 1) if d in dims else i for d, i in enumerate(indices))

    return View(source, call.shape, remap)


def _repeat(call: OperatorCall) -> Value:
    source = call.value(0)
    lead = len(call.shape) - len(source.shape)

    def remap(indices: Indices) -> Indices:
        return tuple(index % size for index, size in zip(indices[lead:], source.shape, strict=True))

    return View(source, call.shape, remap)


def _cat(call: OperatorCall) -> Value:
    values = [value for value in call.get(0, "tensors") if value.shape != (0,)]
    return Concat(values, call.get(1, "dim", 0) % len(call.shape), call.shape, call.dtype)


def _stack(call: OperatorCall) -> Value:
    dim = call.get(1, "dim", 0) % len(call.shape)
    parts = []
    for value in call.get(0, "tensors"):
        shape = (*value.shape[:dim], 1, *value.shape[dim:])
        parts.append(View(value, shape, lambda indices: (*indices[:dim], *indices[dim + 1 :])))
    return Concat(parts, dim, call.shape, call.dtype)


def _pad(call: OperatorCall) -> Value:
    """Each dimension as three parts behind each other; a negative number cuts off."""
    named = call.node.op.startswith("aten.pad.")
    made, margins, filler = call.value(0), call.get(1, "pad"), call.get(3 if named else 2, "value") or 0
    if named and call.get(2, "mode", "constant") != "constant":
        raise call.unsupported("by anything but a constant")
    for place in range(len(margins) // 2):
        dim, (before, after) = len(made.shape) - 1 - place, margins[2 * place : 2 * place + 2]
        kept = made.shape[dim] + min(before, 0) + min(after, 0)
        made = sliced(made, dim, max(-before, 0), kept, 1)
        shapes = [(*made.shape[:dim], size, *made.shape[dim + 1 :]) for size in (before, after)]
        edges = [
            IndexFunction(lambda builder, indices: builder.const(filler, call.dtype), shape, call.dtype)
            for shape in shapes
        ]
        parts = [edges[0]] * (before > 0) + [made] + [edges[1]] * (after > 0)
        whole = kept + max(before, 0) + max(after, 0)
        made = Concat(parts, dim, (*made.shape[:dim], whole, *made.shape[dim + 1 :]), call.dtype)
    if filler or min(margins, default=0) < 0:
        return made
    before = [0] * (len(made.shape) - len(margins) // 2) + list(margins[-2::-2])
    return ZeroPadded(made, call.value(0), before)


def _repeat_interleave(call: OperatorCall) -> Value:
    source, times, dim = call.value(0), call.get(1, "repeats"), call.get(2, "dim")
    if not isinstance(times, int) or dim is None:
        raise call.unsupported("by a tensor, or flattened")
    dim %= len(source.shape)
    return View(
        source, call.shape, lambda indices: (*indices[:dim], indices[dim] // times, *indices[dim + 1 :])
    )


def _diagonal(call: OperatorCall) -> Value:
    source = call.value(0)
    offset, first, second = call.get(1, "offset", 0), call.get(2, "dim1", 0), call.get(3, "dim2", 1)
    first, second = first % len(source.shape), second % len(source.shape)

    def remap(indices: Indices) -> Indices:
        rest, along = iter(indices[:-1]), indices[-1]
        places = {first: along + max(-offset, 0), second: along + max(offset, 0)}
        return tuple(places[d] if d in places else next(rest) for d in range(len(source.shape)))

    return View(source, call.shape, remap)


def lookup(source: Value, where: Value, dim: int, shape: Sequence[int], at: int, size: int) -> Value:
    """source[..., where, ...] along `dim`; the dimensions of `where` stand in the result's from `at` on."""
    rank = len(where.shape)

    def remap(indices: Indices, context: LoweringContext) -> Indices:
        place = context.element(where, indices[at : at + rank])
        return (*indices[:dim], indirect(context.builder.cast(place, "int64"), size), *indices[at + rank :])

    return Gather(source, where, shape, remap)


def _embedding(call: OperatorCall) -> Value:
    table, where = call.value(0), call.value(1)
    return lookup(table, where, 0, call.shape, 0, table.shape[0])


def _index_select(call: OperatorCall) -> Value:
    source, where = call.value(0), call.value(2)
    dim = call.get(1, "dim") % len(source.shape)
    return lookup(source, where, dim, call.shape, dim, source.shape[dim])


def gathered(source: Value, where: Value, dim: int) -> Value:
    """The source at one's own indices, but along `dim` where `where` says."""
    size = source.shape[dim]

    def remap(indices: Indices, context: LoweringContext) -> Indices:
        place = indirect(context.builder.cast(context.element(where, indices), "int64"), size)
        return (*indices[:dim], place, *indices[dim + 1 :])

    return Gather(source, where, where.shape, remap)


def _gather(call: OperatorCall) -> Value:
    source = call.value(0)
    return gathered(source, call.value(2), call.get(1, "dim") % len(source.shape))


def _triangle(lower: bool) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source, shift = call.value(0), call.get(1, "diagonal", 0)

        def make(builder: ExprBuilder, indices: Indices) -> Expr:
            off = builder.make("index", dtype="int64", data=indices[-1] - indices[-2])
            return builder.make("le" if lower else "ge", off, builder.const(shift, "int64"), dtype="bool")

        return select(IndexFunction(make, call.shape, "bool"), source, scalar(0, call.dtype), call.dtype)

    return handler


def _filled(value: float | None) -> Handler:
    def handler(call: OperatorCall) -> Value:
        given = call.get(1, "fill_value") if value is None else value
        if isinstance(given, Value):
            return expanded(convert(given, call.dtype), call.shape)
        return IndexFunction(
            lambda builder, indices: builder.const(given, call.dtype), call.shape, call.dtype
        )

    return handler


def _arange(call: OperatorCall) -> Value:
    numbers = [a for a in call.node.args if isinstance(a, (int, float))]
    start = numbers[0] if len(numbers) > 1 else 0
    step = numbers[2] if len(numbers) > 2 else 1

    def make(builder: ExprBuilder, indices: Indices) -> Expr:
        at = builder.cast(builder.make("index", dtype="int64", data=indices[0]), call.dtype)
        scaled = builder.make("mul", at, builder.const(step, call.dtype))
        return builder.make("add", scaled, builder.const(start, call.dtype))

    return IndexFunction(make, call.shape, call.dtype)


def _dropout(call: OperatorCall) -> Value:
    if call.get(2, "train", False) and call.get(1, "p", 0.5):
        raise call.unsupported("in training mode is random")
    return call.value(0)


_COPIES = (
    "contiguous",
    "clone",
    "detach",
    "alias",
    "lift_fresh_copy",
    "to",
    "_to_copy",
    "type_as",
    "detach_copy",
    "float",
    "half",
)
_RESHAPES = (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "view_as",
    "reshape_as",
)

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_COPIES, _same),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "feature_dropout"), _dropout),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    **dict.fromkeys(("full", "full_like", "fill"), _filled(None)),
    "scalar_tensor": lambda call: scalar(call.get(0, "s"), call.dtype),
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "numpy_T": _reversed,
    "mT": _transpose,
    "select": _select,
    "slice": _slice,
    "unbind": _unbind,
    "getitem": _getitem,
    "broadcast_tensors": _broadcast_tensors,
    "flip": _flip,
    "pad": _pad,
    "constant_pad_nd": _pad,
    "repeat_interleave": _repeat_interleave,
    "diagonal": _diagonal,
    "repeat": _repeat,
    "stack": _stack,
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "arange": _arange,
}
