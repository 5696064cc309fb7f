"""Reductions, norms, softmaxes and losses, taken apart into sums, maxima and element-wise steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from kernelpro.authors.playbook.graph.elementwise import formula, softplus_of
from kernelpro.authors.playbook.graph.operator_call import (
    Handler,
    OperatorCall,
    add,
    broadcast_shape,
    compare,
    convert,
    div,
    mul,
    op,
    reduce,
    scalar,
    select,
    sub,
)
from kernelpro.authors.playbook.graph.shapes import expanded, gathered, reshaped
from kernelpro.authors.playbook.graph.values import IndexFunction, Indices, Scan, Value
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, ExprBuilder

_NONE, _MEAN, _SUM = 0, 1, 2
"""ATen's numbers for how a loss is reduced."""


def _dims(call: OperatorCall, place: int = 1) -> list[int]:
    """The dimensions that an operator goes over; none given: all."""
    rank = len(call.value(0).shape)
    given = call.get(place, "dim")
    given = [given] if isinstance(given, int) else given
    return sorted(d % rank for d in given) if given else list(range(rank))


def mean(source: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    return mul(reduce("sum", source, dims, keepdim), 1 / prod(source.shape[d] for d in dims))


def centred(source: Value, dims: Sequence[int]) -> Value:
    return sub(source, mean(source, dims, keepdim=True))


def squared(source: Value) -> Value:
    return mul(source, source)


def variance(source: Value, dims: Sequence[int], correction: float, keepdim: bool) -> Value:
    count = prod(source.shape[d] for d in dims)
    return mul(reduce("sum", squared(centred(source, dims)), dims, keepdim), 1 / (count - correction))


def _plain(kind: Any) -> Handler:
    def handler(call: OperatorCall) -> Value:
        whole = call.overload == "default" and not call.node.op.startswith(("aten.amax", "aten.amin"))
        source = convert(call.value(0), call.dtype) if kind in ("sum", "prod") else call.value(0)
        if source.dtype == "bool":
            raise call.unsupported("of bool")
        dims = list(range(len(source.shape))) if whole else _dims(call)
        return reduce(kind, source, dims, not whole and bool(call.get(2, "keepdim", False)))

    return handler


def _mean(call: OperatorCall) -> Value:
    whole = call.overload == "default"
    dims = list(range(len(call.value(0).shape))) if whole else _dims(call)
    return mean(convert(call.value(0), call.dtype), dims, not whole and bool(call.get(2, "keepdim", False)))


def _first(source: Value, best: Value, dim: int, keepdim: bool) -> Value:
    """The least index along `dim` at which `source` is `best`."""
    size = source.shape[dim]

    def make(builder: ExprBuilder, indices: Indices) -> Expr:
        return builder.make("index", dtype="int64", data=indices[dim])

    place = select(
        compare("eq", source, best), IndexFunction(make, source.shape, "int64"), scalar(size - 1), "int64"
    )
    return reduce("min", place, [dim], keepdim)


def _arg(kind: Any) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source, dim, keepdim = call.value(0), call.get(1, "dim"), bool(call.get(2, "keepdim", False))
        if dim is None:
            source, dim = reshaped(source, (prod(source.shape),)), 0
        dim %= len(source.shape)
        return _first(source, reduce(kind, source, [dim], keepdim=True), dim, keepdim)

    return handler


def _best(kind: Any) -> Handler:
    """max and min in their three forms."""

    def handler(call: OperatorCall) -> Value | tuple[Value, ...]:
        if call.overload == "other":
            return op(kind, call.value(0), call.value(1), dtype=call.dtype)
        source = call.value(0)
        if call.overload == "default":
            return reduce(kind, source, range(len(source.shape)))
        dim, keepdim = call.get(1, "dim") % len(source.shape), bool(call.get(2, "keepdim", False))
        best = reduce(kind, source, [dim], keepdim=True)
        return reduce(kind, source, [dim], keepdim), _first(source, best, dim, keepdim)

    return handler


def _variance(call: OperatorCall) -> Value:
    source = call.value(0)
    correction = call.node.kwargs.get("correction", 1)
    dims, keepdim = list(range(len(source.shape))), bool(call.node.kwargs.get("keepdim", False))
    if call.overload == "dim":
        dims, correction, keepdim = (
            _dims(call),
            int(call.get(2, "unbiased", True)),
            bool(call.get(3, "keepdim", False)),
        )
    elif call.overload == "default":
        correction = int(call.get(1, "unbiased", True))
    else:
        dims, correction = _dims(call), 1 if correction is None else correction
    found = variance(source, dims, correction, keepdim)
    return op("sqrt", found) if call.node.op.startswith("aten.std") else found


def _norm(call: OperatorCall) -> Value:
    source, power = call.value(0), call.get(1, "ord", 2)
    dims, keepdim = _dims(call, 2), bool(call.get(3, "keepdim", False))
    size = op("abs", source)
    if power == 2:
        return op("sqrt", reduce("sum", squared(source), dims, keepdim))
    if power == 1:
        return reduce("sum", size, dims, keepdim)
    if power == float("inf"):
        return reduce("max", size, dims, keepdim)
    raise call.unsupported(f"of order {power}")


def exponentials(source: Value, dim: int) -> tuple[Value, Value, Value]:
    """The maximum, exp(x - maximum), and its sum."""
    top = reduce("max", source, [dim], keepdim=True)
    powers = op("exp", sub(source, top))
    return top, powers, reduce("sum", powers, [dim], keepdim=True)


def softmax(source: Value, dim: int) -> Value:
    _, powers, total = exponentials(source, dim)
    return div(powers, total)


def log_softmax(source: Value, dim: int) -> Value:
    top, _, total = exponentials(source, dim)
    return sub(sub(source, top), op("log", total))


def _softmax(call: OperatorCall) -> Value:
    source = convert(call.value(0), call.dtype)
    made = log_softmax if "log" in call.node.op else softmax
    return made(source, call.get(1, "dim") % len(source.shape))


def _logsumexp(call: OperatorCall) -> Value:
    source, dims, keepdim = (
        convert(call.value(0), call.dtype),
        _dims(call),
        bool(call.get(2, "keepdim", False)),
    )
    top = reduce("max", source, dims, keepdim=True)
    total = reduce("sum", op("exp", sub(source, top)), dims, keepdim)
    return add(op("log", total), top if keepdim else reduce("max", source, dims))


# --- norms -------------------------------------------------------------------------------------------------


def _optional(call: OperatorCall, place: int, name: str) -> Value | None:
    found = call.get(place, name)
    return found if isinstance(found, Value) else None


def _standardised(source: Value, dims: Sequence[int], eps: float) -> Value:
    off = centred(source, dims)
    return mul(off, op("rsqrt", add(mean(squared(off), dims, keepdim=True), eps)))


def _affine(source: Value, weight: Value | None, bias: Value | None) -> Value:
    scaled = mul(source, weight) if weight else source
    return add(scaled, bias) if bias else scaled


def _layer_norm(call: OperatorCall) -> Value:
    source = call.value(0)
    dims = range(len(source.shape) - len(call.get(1, "normalized_shape")), len(source.shape))
    normed = _standardised(source, dims, call.get(4, "eps", 1e-5))
    return _affine(normed, _optional(call, 2, "weight"), _optional(call, 3, "bias"))


def _rms_norm(call: OperatorCall) -> Value:
    source = call.value(0)
    dims = range(len(source.shape) - len(call.get(1, "normalized_shape")), len(source.shape))
    eps = call.get(3, "eps")
    eps = 1.1920928955078125e-07 if eps is None else eps
    normed = mul(source, op("rsqrt", add(mean(squared(source), dims, keepdim=True), eps)))
    return _affine(normed, _optional(call, 2, "weight"), None)


def _by_channel(value: Value | None, rank: int) -> Value | None:
    """A vector of channels as a source of that rank broadcasts it."""
    return reshaped(value, (value.shape[0], *(1,) * (rank - 2))) if value else None


def _group_norm(call: OperatorCall) -> Value:
    source, groups = call.value(0), call.get(1, "num_groups")
    batch, channels, *rest = source.shape
    inner = prod(rest)
    split = reshaped(source, (batch, groups, channels // groups, inner))
    normed = reshaped(_standardised(split, (2, 3), call.get(4, "eps", 1e-5)), source.shape)
    weight, bias = (
        _by_channel(_optional(call, place, name), len(source.shape))
        for place, name in ((2, "weight"), (3, "bias"))
    )
    return _affine(normed, weight, bias)


def _instance_norm(call: OperatorCall) -> Value:
    source, rank = call.value(0), len(call.shape)
    if not call.get(5, "use_input_stats", True):
        raise call.unsupported("with running statistics")
    normed = _standardised(source, range(2, rank), call.get(7, "eps", 1e-5))
    return _affine(
        normed, _by_channel(_optional(call, 1, "weight"), rank), _by_channel(_optional(call, 2, "bias"), rank)
    )


def _batch_norm(call: OperatorCall) -> Value | tuple[Value, ...]:
    source, rank = call.value(0), len(call.value(0).shape)
    name = call.node.op.split(".")[1]
    weight, bias = (_by_channel(_optional(call, p, n), rank) for p, n in ((1, "weight"), (2, "bias")))
    centre, spread = (
        _by_channel(_optional(call, p, n), rank) for p, n in ((3, "running_mean"), (4, "running_var"))
    )
    training = call.get(5, "training", False) if name != "_native_batch_norm_legit_no_training" else False
    eps = call.get(6 if name == "_native_batch_norm_legit_no_training" else 7, "eps", 1e-5)
    if not training:
        assert centre and spread
        normed = mul(sub(source, centre), op("rsqrt", add(spread, eps)))
    else:
        normed = _standardised(source, [d for d in range(rank) if d != 1], eps)
    result = _affine(normed, weight, bias)
    return result if name == "batch_norm" else (result,)


# --- losses ------------------------------------------------------------------------------------------------


def _reduced(loss: Value, how: int) -> Value:
    if how == _NONE:
        return loss
    every = list(range(len(loss.shape)))
    return mean(loss, every) if how == _MEAN else reduce("sum", loss, every)


def _cross_entropy(call: OperatorCall) -> Value:
    source, target = call.value(0), call.value(1)
    how, ignored = call.get(3, "reduction", _MEAN), call.get(4, "ignore_index", -100)
    if _optional(call, 2, "weight") or call.get(5, "label_smoothing", 0.0):
        raise call.unsupported("with class weights or label smoothing")
    dim = 1 if len(source.shape) > 1 else 0
    if target.dtype in FLOATING:
        loss = reduce("sum", mul(mul(log_softmax(source, dim), target), -1.0), [dim])
        return (
            mul(reduce("sum", loss, []), 1 / source.shape[0]) if how == _MEAN and dim else _reduced(loss, how)
        )
    return _likelihood(log_softmax(source, dim), target, dim, how, ignored)


def _likelihood(logs: Value, target: Value, dim: int, how: int, ignored: int) -> Value:
    """Minus the log-probability of each target, left out where the target is `ignored`."""
    counted = compare("ne", target, scalar(ignored))
    safe = select(counted, target, scalar(0), "int64")
    place = reshaped(safe, (*target.shape[:dim], 1, *target.shape[dim:]))
    picked = reshaped(gathered(logs, place, dim), target.shape)
    loss = select(counted, mul(picked, -1.0), scalar(0.0), logs.dtype)
    if how == _NONE:
        return loss
    total = reduce("sum", loss, [])
    if how == _SUM:
        return total
    return div(total, reduce("sum", convert(counted, logs.dtype), []))


def _nll(call: OperatorCall) -> Value:
    if _optional(call, 2, "weight"):
        raise call.unsupported("with class weights")
    dim = 1 if len(call.value(0).shape) > 1 else 0
    return _likelihood(
        call.value(0), call.value(1), dim, call.get(3, "reduction", _MEAN), call.get(4, "ignore_index", -100)
    )


def _difference(call: OperatorCall) -> Value:
    return sub(call.value(0), call.value(1))


def _mse(call: OperatorCall) -> Value:
    return _reduced(squared(_difference(call)), call.get(2, "reduction", _MEAN))


def _l1(call: OperatorCall) -> Value:
    return _reduced(op("abs", _difference(call)), call.get(2, "reduction", _MEAN))


def _huber(call: OperatorCall) -> Value:
    """smooth_l1 divides by its bend, huber does not."""
    bend, off = call.get(3, "beta", 1.0), _difference(call)
    size, scale = op("abs", off), 1.0 if "huber" in call.node.op else 1 / bend
    near, far = mul(squared(off), 0.5 * scale), mul(sub(size, 0.5 * bend), bend * scale)
    return _reduced(
        select(compare("lt", size, scalar(bend)), near, far, call.dtype), call.get(2, "reduction", _MEAN)
    )


def _kl(call: OperatorCall) -> Value:
    source, target = call.value(0), call.value(1)
    if call.node.kwargs.get("log_target", False):
        loss = mul(op("exp", target), sub(target, source))
    else:
        safe = select(compare("gt", target, scalar(0.0)), op("log", target), scalar(0.0), call.dtype)
        loss = mul(target, sub(safe, source))
    return _reduced(loss, call.get(2, "reduction", _MEAN))


def _bce(call: OperatorCall) -> Value:
    """Logarithms are not let below -100, as the reference's are not."""
    p, target = call.value(0), call.value(1)
    if _optional(call, 2, "weight"):
        raise call.unsupported("with weights")
    yes, no = (formula("clamp_min", op("log", q), -100.0) for q in (p, op("sub", scalar(1.0), p)))
    loss = mul(add(mul(target, yes), mul(op("sub", scalar(1.0), target), no)), -1.0)
    return _reduced(loss, call.get(3, "reduction", _MEAN))


def _bce_with_logits(call: OperatorCall) -> Value:
    x, target = call.value(0), call.value(1)
    if _optional(call, 2, "weight") or _optional(call, 3, "pos_weight"):
        raise call.unsupported("with weights")
    return _reduced(sub(softplus_of(x), mul(x, target)), call.get(4, "reduction", _MEAN))


def _cosine(call: OperatorCall) -> Value:
    a, b = (expanded(call.value(i), _joint(call)) for i in (0, 1))
    dim, eps = call.get(2, "dim", 1) % len(a.shape), call.get(3, "eps", 1e-8)
    dot = reduce("sum", mul(a, b), [dim])
    sizes = [formula("clamp_min", op("sqrt", reduce("sum", squared(v), [dim])), eps) for v in (a, b)]
    return div(dot, mul(*sizes))


def _joint(call: OperatorCall) -> tuple[int, ...]:
    return broadcast_shape([call.value(0), call.value(1)])


def _running(kind: Any, source: Value, dim: int) -> Value:
    """One element alone is all there is to run over."""
    alone = not source.shape or source.shape[dim] == 1
    return source if alone else Scan(kind, source, dim % len(source.shape))


def _scan(kind: Any) -> Handler:
    return lambda call: _running(kind, convert(call.value(0), call.dtype), call.get(1, "dim"))


def _running_best(kind: Any) -> Handler:
    """The values; where they stand is not known."""
    return lambda call: (_running(kind, call.value(0), call.get(1, "dim")),)


HANDLERS: dict[str, Handler] = {
    "sum": _plain("sum"),
    "prod": _plain("prod"),
    "amax": _plain("max"),
    "amin": _plain("min"),
    "mean": _mean,
    "max": _best("max"),
    "min": _best("min"),
    "argmax": _arg("max"),
    "argmin": _arg("min"),
    "var": _variance,
    "std": _variance,
    "linalg_vector_norm": _norm,
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _softmax,
    "_log_softmax": _softmax,
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
    "nll_loss": _nll,
    "nll_loss_nd": _nll,
    "mse_loss": _mse,
    "l1_loss": _l1,
    "smooth_l1_loss": _huber,
    "huber_loss": _huber,
    "kl_div": _kl,
    "binary_cross_entropy": _bce,
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "cosine_similarity": _cosine,
    "cumsum": _scan("sum"),
    "cumprod": _scan("prod"),
    "cummax": _running_best("max"),
    "cummin": _running_best("min"),
}
