"""Reductions, norms, softmaxes, losses and scans, decomposed into sums, maxima and element-wise
operations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelpro.authors.playbook.graph.elementwise import formula, log1p_exp
from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall
from kernelpro.authors.playbook.graph.shapes import expanded, reshaped
from kernelpro.authors.playbook.graph.value_ops import (
    add,
    broadcast_shape,
    compare,
    convert,
    div,
    index_along,
    mul,
    op,
    reduce,
    scalar,
    select,
    sub,
)
from kernelpro.authors.playbook.graph.values import Gather, Scan, Value
from kernelpro.authors.playbook.ir.expressions import FLOATING
from kernelpro.authors.playbook.ir.stages import ReduceKind

_NONE, _MEAN, _SUM = 0, 1, 2
"""ATen's codes for the reduction of a loss."""


def _all_dims(value: Value) -> list[int]:
    return list(range(len(value.shape)))


def _dims(call: OperatorCall, position: int = 1) -> list[int]:
    """The dimensions to reduce; all if none are given."""
    source, dims = call.value(0), call.get(position, "dim")
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(d % len(source.shape) for d in dims) if dims else _all_dims(source)


def _keepdim(call: OperatorCall, position: int = 2) -> bool:
    return bool(call.get(position, "keepdim", False))


def mean(source: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    """The mean over dimensions."""
    return mul(reduce("sum", source, dims, keepdim), 1 / prod(source.shape[d] for d in dims))


def _centered(source: Value, dims: Sequence[int]) -> Value:
    return sub(source, mean(source, dims, keepdim=True))


def _squared(source: Value) -> Value:
    return mul(source, source)


def _reduce(kind: ReduceKind) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source = convert(call.value(0), call.dtype) if kind in ("sum", "prod") else call.value(0)
        if source.dtype == "bool":
            raise call.unsupported("of bool")
        if call.overload == "default" and call.name not in ("amax", "amin"):
            return reduce(kind, source, _all_dims(source))
        return reduce(kind, source, _dims(call), _keepdim(call))

    return handler


def _mean(call: OperatorCall) -> Value:
    source = convert(call.value(0), call.dtype)
    if call.overload == "default":
        return mean(source, _all_dims(source))
    return mean(source, _dims(call), _keepdim(call))


def _first_index(source: Value, extremum: Value, dim: int, keepdim: bool) -> Value:
    """The smallest index along `dim` at which the source equals `extremum`."""
    last = scalar(source.shape[dim] - 1)
    index = select(compare("eq", source, extremum), index_along(source.shape, dim), last, "int64")
    return reduce("min", index, [dim], keepdim)


def _arg_extremum(kind: ReduceKind) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source, dim = call.value(0), call.get(1, "dim")
        if dim is None:
            source, dim = reshaped(source, (prod(source.shape),)), 0
        dim %= len(source.shape)
        return _first_index(source, reduce(kind, source, [dim], keepdim=True), dim, _keepdim(call))

    return handler


def _extremum(kind: ReduceKind) -> Handler:
    """max and min: of two tensors, of all elements, or along a dimension with indices."""

    def handler(call: OperatorCall) -> Value | tuple[Value, ...]:
        source = call.value(0)
        if call.overload == "other":
            return op(kind, source, call.value(1), dtype=call.dtype)
        if call.overload == "default":
            return reduce(kind, source, _all_dims(source))
        dim, keepdim = call.dim(1, "dim"), _keepdim(call)
        extremum = reduce(kind, source, [dim], keepdim=True)
        return reduce(kind, source, [dim], keepdim), _first_index(source, extremum, dim, keepdim)

    return handler


def _variance(call: OperatorCall) -> Value:
    source = call.value(0)
    if call.overload == "default":
        dims, correction, keepdim = _all_dims(source), int(call.get(1, "unbiased", True)), False
    elif call.overload == "dim":
        dims, correction, keepdim = _dims(call), int(call.get(2, "unbiased", True)), _keepdim(call, 3)
    else:
        correction = call.node.kwargs.get("correction", 1)
        dims, keepdim = _dims(call), bool(call.node.kwargs.get("keepdim", False))
        correction = 1 if correction is None else correction
    count = prod(source.shape[d] for d in dims)
    squares = reduce("sum", _squared(_centered(source, dims)), dims, keepdim)
    variance = mul(squares, 1 / (count - correction))
    return op("sqrt", variance) if call.name == "std" else variance


def _vector_norm(call: OperatorCall) -> Value:
    source, order = call.value(0), call.get(1, "ord", 2)
    dims, keepdim = _dims(call, 2), _keepdim(call, 3)
    if order == 2:
        return op("sqrt", reduce("sum", _squared(source), dims, keepdim))
    if order == 1:
        return reduce("sum", op("abs", source), dims, keepdim)
    if order == float("inf"):
        return reduce("max", op("abs", source), dims, keepdim)
    raise call.unsupported(f"of order {order}")


def _exponentials(source: Value, dims: Sequence[int]) -> tuple[Value, Value, Value]:
    """The maximum, exp(x - maximum), and the sum of these exponentials."""
    maximum = reduce("max", source, dims, keepdim=True)
    powers = op("exp", sub(source, maximum))
    return maximum, powers, reduce("sum", powers, dims, keepdim=True)


def softmax(source: Value, dim: int) -> Value:
    """The softmax along a dimension."""
    _, powers, total = _exponentials(source, [dim])
    return div(powers, total)


def log_softmax(source: Value, dim: int) -> Value:
    """The logarithm of the softmax along a dimension."""
    maximum, _, total = _exponentials(source, [dim])
    return sub(sub(source, maximum), op("log", total))


def _softmax(call: OperatorCall) -> Value:
    source = convert(call.value(0), call.dtype)
    return (log_softmax if "log" in call.name else softmax)(source, call.dim(1, "dim"))


def _logsumexp(call: OperatorCall) -> Value:
    maximum, _, total = _exponentials(convert(call.value(0), call.dtype), _dims(call))
    return reshaped(add(op("log", total), maximum), call.shape)


# --- norms -------------------------------------------------------------------------------------------------


def _standardized(source: Value, dims: Sequence[int], eps: float) -> Value:
    centered = _centered(source, dims)
    return mul(centered, op("rsqrt", add(mean(_squared(centered), dims, keepdim=True), eps)))


def _affine(source: Value, weight: Value | None, bias: Value | None) -> Value:
    scaled = mul(source, weight) if weight else source
    return add(scaled, bias) if bias else scaled


def _normalized_dims(call: OperatorCall) -> range:
    rank = len(call.value(0).shape)
    return range(rank - len(call.get(1, "normalized_shape")), rank)


def _layer_norm(call: OperatorCall) -> Value:
    normalized = _standardized(call.value(0), _normalized_dims(call), call.get(4, "eps", 1e-5))
    return _affine(normalized, call.optional(2, "weight"), call.optional(3, "bias"))


def _rms_norm(call: OperatorCall) -> Value:
    source, eps = call.value(0), call.get(3, "eps")
    eps = 1.1920928955078125e-07 if eps is None else eps
    mean_square = mean(_squared(source), _normalized_dims(call), keepdim=True)
    return _affine(mul(source, op("rsqrt", add(mean_square, eps))), call.optional(2, "weight"), None)


def _per_channel(call: OperatorCall, position: int, name: str) -> Value | None:
    """A vector with one element for each channel (dimension 1) of the first argument, ready to broadcast."""
    vector, rank = call.optional(position, name), len(call.value(0).shape)
    return reshaped(vector, (vector.shape[0], *(1,) * (rank - 2))) if vector else None


def _group_norm(call: OperatorCall) -> Value:
    source, groups = call.value(0), call.get(1, "num_groups")
    batch, channels, *spatial = source.shape
    grouped = reshaped(source, (batch, groups, channels // groups, prod(spatial)))
    normalized = reshaped(_standardized(grouped, (2, 3), call.get(4, "eps", 1e-5)), source.shape)
    return _affine(normalized, _per_channel(call, 2, "weight"), _per_channel(call, 3, "bias"))


def _instance_norm(call: OperatorCall) -> Value:
    if not call.get(5, "use_input_stats", True):
        raise call.unsupported("with running statistics")
    normalized = _standardized(call.value(0), range(2, len(call.shape)), call.get(7, "eps", 1e-5))
    return _affine(normalized, _per_channel(call, 1, "weight"), _per_channel(call, 2, "bias"))


def _batch_norm(call: OperatorCall) -> Value | tuple[Value, ...]:
    source = call.value(0)
    inference = call.name == "_native_batch_norm_legit_no_training"
    eps = call.get(6 if inference else 7, "eps", 1e-5)
    if inference or not call.get(5, "training", False):
        running_mean, running_var = (
            _per_channel(call, 3, "running_mean"),
            _per_channel(call, 4, "running_var"),
        )
        assert running_mean and running_var
        normalized = mul(sub(source, running_mean), op("rsqrt", add(running_var, eps)))
    else:
        normalized = _standardized(source, [d for d in _all_dims(source) if d != 1], eps)
    result = _affine(normalized, _per_channel(call, 1, "weight"), _per_channel(call, 2, "bias"))
    return result if call.name == "batch_norm" else (result,)


# --- losses ------------------------------------------------------------------------------------------------


def _reduce_loss(loss: Value, reduction: int) -> Value:
    if reduction == _NONE:
        return loss
    return mean(loss, _all_dims(loss)) if reduction == _MEAN else reduce("sum", loss, _all_dims(loss))


def _cross_entropy(call: OperatorCall) -> Value:
    source, target, reduction = call.value(0), call.value(1), call.get(3, "reduction", _MEAN)
    if call.optional(2, "weight") or call.get(5, "label_smoothing", 0.0):
        raise call.unsupported("with class weights or label smoothing")
    dim = 1 if len(source.shape) > 1 else 0
    logs = log_softmax(source, dim)
    if target.dtype not in FLOATING:
        return _negative_log_likelihood(logs, target, dim, reduction, call.get(4, "ignore_index", -100))
    loss = reduce("sum", mul(mul(logs, target), -1.0), [dim])
    if reduction == _MEAN and dim:
        return mul(reduce("sum", loss, []), 1 / source.shape[0])
    return _reduce_loss(loss, reduction)


def _negative_log_likelihood(
    logs: Value, target: Value, dim: int, reduction: int, ignore_index: int
) -> Value:
    """Minus the log-probability of each target; 0 for targets equal to `ignore_index`, which the mean does
    not count."""
    counted = compare("ne", target, scalar(ignore_index))
    valid_target = select(counted, target, scalar(0), "int64")
    index = reshaped(valid_target, (*target.shape[:dim], 1, *target.shape[dim:]))
    picked = reshaped(Gather(logs, index, dim, same_rank=True), target.shape)
    loss = select(counted, mul(picked, -1.0), scalar(0.0), logs.dtype)
    if reduction == _NONE:
        return loss
    total = reduce("sum", loss, [])
    return total if reduction == _SUM else div(total, reduce("sum", convert(counted, logs.dtype), []))


def _nll(call: OperatorCall) -> Value:
    if call.optional(2, "weight"):
        raise call.unsupported("with class weights")
    logs, reduction, ignore_index = (
        call.value(0),
        call.get(3, "reduction", _MEAN),
        call.get(4, "ignore_index", -100),
    )
    return _negative_log_likelihood(
        logs, call.value(1), 1 if len(logs.shape) > 1 else 0, reduction, ignore_index
    )


def _difference(call: OperatorCall) -> Value:
    return sub(call.value(0), call.value(1))


def _mse(call: OperatorCall) -> Value:
    return _reduce_loss(_squared(_difference(call)), call.get(2, "reduction", _MEAN))


def _l1(call: OperatorCall) -> Value:
    return _reduce_loss(op("abs", _difference(call)), call.get(2, "reduction", _MEAN))


def _huber(call: OperatorCall) -> Value:
    """huber_loss, and smooth_l1_loss, which divides by beta."""
    beta, difference = call.get(3, "beta", 1.0), _difference(call)
    size, scale = op("abs", difference), 1.0 if call.name == "huber_loss" else 1 / beta
    quadratic, linear = mul(_squared(difference), 0.5 * scale), mul(sub(size, 0.5 * beta), beta * scale)
    loss = select(compare("lt", size, scalar(beta)), quadratic, linear, call.dtype)
    return _reduce_loss(loss, call.get(2, "reduction", _MEAN))


def _kl_div(call: OperatorCall) -> Value:
    source, target = call.value(0), call.value(1)
    if call.node.kwargs.get("log_target", False):
        loss = mul(op("exp", target), sub(target, source))
    else:
        log_target = select(compare("gt", target, scalar(0.0)), op("log", target), scalar(0.0), call.dtype)
        loss = mul(target, sub(log_target, source))
    return _reduce_loss(loss, call.get(2, "reduction", _MEAN))


def _bce(call: OperatorCall) -> Value:
    """Logarithms are clamped to at least -100, as in torch."""
    p, target = call.value(0), call.value(1)
    if call.optional(2, "weight"):
        raise call.unsupported("with weights")
    log_p, log_not_p = (formula("clamp_min", op("log", q), -100.0) for q in (p, op("sub", scalar(1.0), p)))
    loss = mul(add(mul(target, log_p), mul(op("sub", scalar(1.0), target), log_not_p)), -1.0)
    return _reduce_loss(loss, call.get(3, "reduction", _MEAN))


def _bce_with_logits(call: OperatorCall) -> Value:
    x, target = call.value(0), call.value(1)
    if call.optional(2, "weight") or call.optional(3, "pos_weight"):
        raise call.unsupported("with weights")
    return _reduce_loss(sub(log1p_exp(x), mul(x, target)), call.get(4, "reduction", _MEAN))


def _triplet_margin(call: OperatorCall) -> Value:
    """A distance is the norm of (difference + eps) along the last dimension."""
    anchor, positive, negative = (call.value(i) for i in range(3))
    margin, order, eps = call.get(3, "margin", 1.0), call.get(4, "p", 2.0), call.get(5, "eps", 1e-6)
    if order != 2 or call.get(6, "swap", False) or len({v.shape for v in (anchor, positive, negative)}) != 1:
        raise call.unsupported("with another norm, swapped distances, or broadcasting")

    def distance(other: Value) -> Value:
        return op("sqrt", reduce("sum", _squared(add(sub(anchor, other), eps)), [len(anchor.shape) - 1]))

    loss = formula("relu", add(sub(distance(positive), distance(negative)), margin))
    return _reduce_loss(loss, call.get(7, "reduction", _MEAN))


def _cosine_similarity(call: OperatorCall) -> Value:
    shape = broadcast_shape([call.value(i).shape for i in (0, 1)])
    a, b = (expanded(call.value(i), shape) for i in (0, 1))
    dim, eps = call.get(2, "dim", 1) % len(shape), call.get(3, "eps", 1e-8)
    norms = [formula("clamp_min", op("sqrt", reduce("sum", _squared(v), [dim])), eps) for v in (a, b)]
    return div(reduce("sum", mul(a, b), [dim]), mul(*norms))


# --- scans -------------------------------------------------------------------------------------------------


def _scan_value(kind: ReduceKind, source: Value, dim: int) -> Value:
    if not source.shape or source.shape[dim] == 1:
        return source
    return Scan(kind, source, dim % len(source.shape))


def _scan(kind: ReduceKind) -> Handler:
    return lambda call: _scan_value(kind, convert(call.value(0), call.dtype), call.get(1, "dim"))


def _running_extremum(kind: ReduceKind) -> Handler:
    """cummax and cummin: the values only, not their indices."""
    return lambda call: (_scan_value(kind, call.value(0), call.get(1, "dim")),)


HANDLERS: dict[str, Handler] = {
    "sum": _reduce("sum"),
    "prod": _reduce("prod"),
    "amax": _reduce("max"),
    "amin": _reduce("min"),
    "mean": _mean,
    "max": _extremum("max"),
    "min": _extremum("min"),
    "argmax": _arg_extremum("max"),
    "argmin": _arg_extremum("min"),
    **dict.fromkeys(("var", "std"), _variance),
    "linalg_vector_norm": _vector_norm,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _softmax),
    "logsumexp": _logsumexp,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "cross_entropy_loss": _cross_entropy,
    **dict.fromkeys(("nll_loss", "nll_loss_nd"), _nll),
    "mse_loss": _mse,
    "l1_loss": _l1,
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), _huber),
    "kl_div": _kl_div,
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "cosine_similarity": _cosine_similarity,
    "triplet_margin_loss": _triplet_margin,
    "cumsum": _scan("sum"),
    "cumprod": _scan("prod"),
    "cummax": _running_extremum("max"),
    "cummin": _running_extremum("min"),
}
