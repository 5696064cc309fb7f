"""Operators that compute nothing: views, copies, concatenation, padding, gathers, and constant tensors."""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall
from kernelpro.authors.playbook.graph.value_ops import (
    broadcast_shape,
    convert,
    index_along,
    op,
    scalar,
    select,
    triangle,
)
from kernelpro.authors.playbook.graph.values import (
    Concat,
    Gather,
    Indices,
    Value,
    View,
    ZeroPadded,
    broadcast_indices,
)
from kernelpro.authors.playbook.ir.indices import constant, reshape


def reshaped(source: Value, shape: Sequence[int]) -> Value:
    """The source with another shape."""
    method = f".reshape({tuple(shape)})"
    return View(source, shape, lambda indices: reshape(indices, shape, source.shape), method)


def permuted(source: Value, dims: Sequence[int]) -> Value:
    """The source with its dimensions in another order."""
    dims = [d % len(source.shape) for d in dims]
    return View(
        source,
        [source.shape[d] for d in dims],
        lambda indices: tuple(indices[dims.index(d)] for d in range(len(dims))),
        f".permute({tuple(dims)})",
    )


def swapped(source: Value) -> Value:
    """The source with its last two dimensions exchanged."""
    rank = len(source.shape)
    return permuted(source, (*range(rank - 2), rank - 1, rank - 2))


def sliced(source: Value, dim: int, start: int, size: int, step: int = 1) -> Value:
    """`size` elements along one dimension."""
    shape = (*source.shape[:dim], size, *source.shape[dim + 1 :])
    return View(
        source, shape, lambda indices: (*indices[:dim], indices[dim] * step + start, *indices[dim + 1 :])
    )


def selected(source: Value, dim: int, index: int) -> Value:
    """The source at one index of a dimension, without that dimension."""
    shape = (*source.shape[:dim], *source.shape[dim + 1 :])
    return View(source, shape, lambda indices: (*indices[:dim], constant(index), *indices[dim:]))


def expanded(source: Value, shape: Sequence[int]) -> Value:
    """The source broadcast to a shape."""
    method = f".expand({tuple(shape)})"
    return View(source, shape, lambda indices: broadcast_indices(indices, source.shape), method)


def filled(value: float, shape: Sequence[int], dtype: str) -> Value:
    """A tensor filled with one number."""
    return expanded(scalar(value, dtype), shape)


def _copy(call: OperatorCall) -> Value:
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


def _reverse_dims(call: OperatorCall) -> Value:
    return permuted(call.value(0), range(len(call.shape) - 1, -1, -1))


def _select(call: OperatorCall) -> Value:
    source, dim = call.value(0), call.dim(1, "dim")
    return selected(source, dim, call.get(2, "index") % source.shape[dim])


def _slice(call: OperatorCall) -> Value:
    source, dim = call.value(0), call.dim(1, "dim", 0)
    size = source.shape[dim]
    start = call.get(2, "start", 0) or 0
    start = max(0, min(size, start + size if start < 0 else start))
    return sliced(source, dim, start, call.shape[dim], call.get(4, "step", 1))


def _narrow(call: OperatorCall) -> Value:
    dim = call.dim(1, "dim")
    return sliced(call.value(0), dim, call.get(2, "start"), call.get(3, "length"))


def _split(call: OperatorCall) -> tuple[Value, ...]:
    source, sizes, dim = call.value(0), call.get(1, "split_size"), call.dim(2, "dim", 0)
    size = source.shape[dim]
    if call.name == "chunk":
        sizes = -(-size // sizes)
    if isinstance(sizes, int):
        sizes = [min(sizes, size - start) for start in range(0, size, sizes)]
    return tuple(sliced(source, dim, sum(sizes[:i]), part) for i, part in enumerate(sizes))


def _unbind(call: OperatorCall) -> tuple[Value, ...]:
    source, dim = call.value(0), call.dim(1, "dim", 0)
    return tuple(selected(source, dim, i) for i in range(source.shape[dim]))


def _getitem(call: OperatorCall) -> Value:
    results, position = call.get(0, "self"), call.get(1, "index")
    if position >= len(results):
        raise call.unsupported(f"of result {position}: it computes only the first {len(results)}")
    result = results[position]
    assert isinstance(result, Value)
    return result


def _broadcast_tensors(call: OperatorCall) -> tuple[Value, ...]:
    values = call.get(0, "tensors")
    shape = broadcast_shape([value.shape for value in values])
    return tuple(expanded(value, shape) for value in values)


def _flip(call: OperatorCall) -> Value:
    source = call.value(0)
    dims = [d % len(source.shape) for d in call.get(1, "dims")]

    def remap(indices: Indices) -> Indices:
        return tuple(i * -1 + (source.shape[d] - 1) if d in dims else i for d, i in enumerate(indices))

    return View(source, call.shape, remap)


def _repeat(call: OperatorCall) -> Value:
    source = call.value(0)
    new_dims = len(call.shape) - len(source.shape)

    def remap(indices: Indices) -> Indices:
        return tuple(index % size for index, size in zip(indices[new_dims:], source.shape, strict=True))

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
    """Each padded dimension is a concatenation of three parts; negative padding crops."""
    has_mode = call.name == "pad"
    padded, padding, fill = call.value(0), call.get(1, "pad"), call.get(3 if has_mode else 2, "value") or 0
    if has_mode and call.get(2, "mode", "constant") != "constant":
        raise call.unsupported("with a mode other than 'constant'")
    for i in range(len(padding) // 2):
        dim, (before, after) = len(padded.shape) - 1 - i, padding[2 * i : 2 * i + 2]
        size = padded.shape[dim] + min(before, 0) + min(after, 0)
        padded = sliced(padded, dim, max(-before, 0), size)
        margins = [
            (*padded.shape[:dim], max(margin, 0), *padded.shape[dim + 1 :]) for margin in (before, after)
        ]
        left, right = (filled(fill, shape, call.dtype) for shape in margins)
        parts = [part for part in (left, padded, right) if part.shape[dim]]
        total = sum(part.shape[dim] for part in parts)
        padded = Concat(parts, dim, (*padded.shape[:dim], total, *padded.shape[dim + 1 :]), call.dtype)
    if fill or min(padding, default=0) < 0:
        return padded
    leading = [0] * (len(padded.shape) - len(padding) // 2) + list(padding[-2::-2])
    return ZeroPadded(padded, call.value(0), leading)


def _repeat_interleave(call: OperatorCall) -> Value:
    source, repeats = call.value(0), call.get(1, "repeats")
    if not isinstance(repeats, int) or call.get(2, "dim") is None:
        raise call.unsupported("with a tensor of repeats, or without a dimension")
    dim = call.dim(2, "dim")
    return View(
        source, call.shape, lambda indices: (*indices[:dim], indices[dim] // repeats, *indices[dim + 1 :])
    )


def _diagonal(call: OperatorCall) -> Value:
    source, offset = call.value(0), call.get(1, "offset", 0)
    first, second = call.dim(2, "dim1", 0), call.dim(3, "dim2", 1)

    def remap(indices: Indices) -> Indices:
        rest, along = iter(indices[:-1]), indices[-1]
        on_diagonal = {first: along + max(-offset, 0), second: along + max(offset, 0)}
        return tuple(on_diagonal[d] if d in on_diagonal else next(rest) for d in range(len(source.shape)))

    return View(source, call.shape, remap)


def _embedding(call: OperatorCall) -> Value:
    return Gather(call.value(0), call.value(1), 0)


def _index_select(call: OperatorCall) -> Value:
    return Gather(call.value(0), call.value(2), call.dim(1, "dim"))


def _gather(call: OperatorCall) -> Value:
    return Gather(call.value(0), call.value(2), call.dim(1, "dim"), same_rank=True)


def _triangle(call: OperatorCall) -> Value:
    mask = triangle(call.shape, call.name == "tril", call.get(1, "diagonal", 0))
    return select(mask, call.value(0), scalar(0, call.dtype), call.dtype)


def _full(value: float | None) -> Handler:
    def handler(call: OperatorCall) -> Value:
        fill = call.get(1, "fill_value") if value is None else value
        if isinstance(fill, Value):
            return expanded(convert(fill, call.dtype), call.shape)
        return filled(fill, call.shape, call.dtype)

    return handler


def _arange(call: OperatorCall) -> Value:
    numbers = [a for a in call.node.args if isinstance(a, (int, float))]
    start = numbers[0] if len(numbers) > 1 else 0
    step = numbers[2] if len(numbers) > 2 else 1
    index = convert(index_along(call.shape, 0), call.dtype)
    return op("add", op("mul", index, scalar(step, call.dtype)), scalar(start, call.dtype))


def _dropout(call: OperatorCall) -> Value:
    if call.get(2, "train", False) and call.get(1, "p", 0.5):
        raise call.unsupported("in training mode, because it is random")
    return call.value(0)


_COPIES = (
    *("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "to", "_to_copy", "type_as"),
    *("detach_copy", "float", "half"),
)
_RESHAPES = (
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"),
    "reshape_as",
)

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_COPIES, _copy),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "feature_dropout"), _dropout),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _full(0)),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _full(1)),
    **dict.fromkeys(("full", "full_like", "fill"), _full(None)),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(("transpose", "t", "mT"), _transpose),
    **dict.fromkeys(("tril", "triu"), _triangle),
    "scalar_tensor": lambda call: scalar(call.get(0, "s"), call.dtype),
    "permute": _permute,
    "numpy_T": _reverse_dims,
    "select": _select,
    "slice": _slice,
    "narrow": _narrow,
    "unbind": _unbind,
    "getitem": _getitem,
    "broadcast_tensors": _broadcast_tensors,
    "flip": _flip,
    "repeat_interleave": _repeat_interleave,
    "diagonal": _diagonal,
    "repeat": _repeat,
    "stack": _stack,
    "embedding": _embedding,
    "index_select": _index_select,
    "gather": _gather,
    "arange": _arange,
}
