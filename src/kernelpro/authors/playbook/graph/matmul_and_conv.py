"""Matrix products, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any

from kernelpro.authors.playbook.graph.operator_call import (
    Handler,
    OperatorCall,
    add,
    broadcast_shape,
    mul,
    op,
    reduce,
    scalar,
    select,
)
from kernelpro.authors.playbook.graph.reductions import softmax
from kernelpro.authors.playbook.graph.shapes import expanded, permuted, reshaped
from kernelpro.authors.playbook.graph.values import (
    IndexFunction,
    Indices,
    LoweringContext,
    Matmul,
    Reduction,
    Value,
    ZeroPadded,
    materialize_if_staged,
    materialize_unless_input,
)
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.stages import Guard


def matmul(left: Value, right: Value) -> Value:
    """As torch.matmul: vectors, batches, broadcasting."""
    a = reshaped(left, (1, *left.shape)) if len(left.shape) == 1 else left
    b = reshaped(right, (*right.shape, 1)) if len(right.shape) == 1 else right
    a, b = materialize_if_staged(a), materialize_if_staged(b)
    batch = broadcast_shape([_batch(a), _batch(b)])
    if a.shape[-2] == 1 or b.shape[-1] == 1:
        pairs = (
            mul(a, swapped(b)) if b.shape[-1] == 1 else mul(reshaped(a, (*a.shape[:-2], a.shape[-1], 1)), b)
        )
        dots = reduce("sum", pairs, [len(pairs.shape) - (1 if b.shape[-1] == 1 else 2)])
        return reshaped(dots, _product_shape(left, right, batch))
    if len(b.shape) == 2 and len(a.shape) > 2:
        flat = Matmul(reshaped(a, (prod(a.shape[:-1]), a.shape[-1])), b)
        made = reshaped(flat, (*a.shape[:-1], b.shape[-1]))
    else:
        made = Matmul(expanded(a, (*batch, *a.shape[-2:])), expanded(b, (*batch, *b.shape[-2:])))
    shape = _product_shape(left, right, batch)
    return made if made.shape == shape else reshaped(made, shape)


def _product_shape(left: Value, right: Value, batch: tuple[int, ...]) -> tuple[int, ...]:
    """A vector's own dimension is not among the result's."""
    rows = left.shape[-2:-1] if len(left.shape) > 1 else ()
    return (*batch, *rows, *(right.shape[-1:] if len(right.shape) > 1 else ()))


def _batch(value: Value) -> Value:
    """A value of the batch dimensions alone, for working out how they broadcast."""
    return IndexFunction(lambda builder, indices: builder.const(0, "int64"), value.shape[:-2], "int64")


def _matmul(call: OperatorCall) -> Value:
    return matmul(call.value(0), call.value(1))


def swapped(value: Value) -> Value:
    rank = len(value.shape)
    return permuted(value, (*range(rank - 2), rank - 1, rank - 2))


def _linear(call: OperatorCall) -> Value:
    weight, bias = call.value(1), call.get(2, "bias")
    made = matmul(call.value(0), swapped(weight))
    return add(made, bias) if isinstance(bias, Value) else made


def _addmm(call: OperatorCall) -> Value:
    made = matmul(call.value(1), call.value(2))
    alpha, beta = call.node.kwargs.get("alpha", 1), call.node.kwargs.get("beta", 1)
    return add(
        made if alpha == 1 else mul(made, alpha), call.value(0) if beta == 1 else mul(call.value(0), beta)
    )


def _attention(call: OperatorCall) -> Value:
    query, key, value = (call.value(i) for i in range(3))
    mask, causal, scale = (
        call.get(3, "attn_mask"),
        call.get(5, "is_causal", False),
        call.node.kwargs.get("scale"),
    )
    if call.get(4, "dropout_p", 0.0) or call.node.kwargs.get("enable_gqa"):
        raise call.unsupported("with dropout or grouped queries")
    scores = mul(matmul(query, swapped(key)), 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    never = scalar(float("-inf"), scores.dtype)
    if causal:

        def below(builder: ExprBuilder, indices: Indices) -> Expr:
            off = builder.make("index", dtype="int64", data=indices[-1] - indices[-2])
            return builder.make("le", off, builder.const(0, "int64"), dtype="bool")

        scores = select(IndexFunction(below, scores.shape, "bool"), scores, never, scores.dtype)
    if isinstance(mask, Value):
        scores = (
            select(mask, scores, never, scores.dtype) if mask.dtype == "bool" else op("add", scores, mask)
        )
    return matmul(softmax(scores, len(scores.shape) - 1), value)


# --- windows -----------------------------------------------------------------------------------------------


def _each(given: Any, count: int, default: int) -> list[int]:
    """One number for each spatial dimension."""
    if given is None or given == []:
        return [default] * count
    given = [given] if isinstance(given, int) else list(given)
    return [int(one) for one in (given * count if len(given) == 1 else given)]


class _Window:
    """Where in the source the elements of an output's window lie."""

    def __init__(
        self, sizes: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ):
        self._sizes, self._stride, self._padding, self._dilation = sizes, stride, padding, dilation

    def at(self, out: Indices, inner: Indices) -> Indices:
        each = zip(out, inner, self._stride, self._padding, self._dilation, strict=True)
        return tuple(o * s + i * d - p for o, i, s, p, d in each)

    def guards(self, out: Indices, inner: Indices) -> tuple[Guard, ...]:
        """For the dimensions in which a window reaches over the edge."""
        found = [Guard(index, size) for index, size in zip(self.at(out, inner), self._sizes, strict=True)]
        return tuple(g for g in found if g.index.bounds[0] < 0 or g.index.bounds[1] >= g.size)


def _pool(kind: Any, dims: int) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source = materialize_unless_input(call.value(0))
        kernel = _each(call.get(1, "kernel_size"), dims, 1)
        stride = _each(call.get(2, "stride"), dims, 0)
        stride = [s or k for s, k in zip(stride, kernel, strict=True)]
        padding = _each(call.get(3, "padding"), dims, 0)
        dilation = _each(call.get(4, "dilation") if kind == "max" else None, dims, 1)
        if (
            kind == "sum"
            and any(padding)
            and (call.get(5, "count_include_pad", True) is False or call.get(6, "divisor_override"))
        ):
            raise call.unsupported("that counts only what is inside")
        sizes = source.shape[-dims:]
        if any(
            (o - 1) * s - p + d * (k - 1) >= n + p
            for o, s, p, d, k, n in zip(
                call.shape[-dims:], stride, padding, dilation, kernel, sizes, strict=True
            )
        ):
            raise call.unsupported("with ceil_mode")
        window = _Window(sizes, stride, padding, dilation)
        lead = len(source.shape) - dims

        def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
            return context.element(source, (*outer[:lead], *window.at(outer[lead:], inner)))

        def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
            return window.guards(outer[lead:], inner)

        pooled = Reduction(kind, call.shape, kernel, call.dtype, [source], body, guards)
        return mul(pooled, 1 / prod(kernel)) if kind == "sum" else pooled

    return handler


def _adaptive(dims: int) -> Handler:
    """Average pooling to a size that divides the source's."""

    def handler(call: OperatorCall) -> Value:
        source = call.value(0)
        sizes, wanted = source.shape[-dims:], call.shape[-dims:]
        if any(size % out for size, out in zip(sizes, wanted, strict=True)):
            raise call.unsupported("to a size that does not divide")
        kernel = [size // out for size, out in zip(sizes, wanted, strict=True)]
        window = _Window(sizes, kernel, [0] * dims, [1] * dims)
        lead = len(source.shape) - dims

        def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
            return context.element(source, (*outer[:lead], *window.at(outer[lead:], inner)))

        domain = (source.shape, tuple(range(lead, lead + dims))) if all(out == 1 for out in wanted) else None
        return mul(
            Reduction("sum", call.shape, kernel, call.dtype, [source], body, domain=domain), 1 / prod(kernel)
        )

    return handler


def _conv(dims: int) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source, weight, bias = call.value(0), call.value(1), call.get(2, "bias")
        stride, dilation = _each(call.get(3, "stride"), dims, 1), _each(call.get(5, "dilation"), dims, 1)
        padding, groups = call.get(4, "padding"), call.get(6, "groups", 1)
        if isinstance(padding, str) or len(source.shape) != dims + 2:
            raise call.unsupported("with padding by name or without a batch")
        margins = _each(padding, dims, 0)
        if isinstance(source, ZeroPadded) and source.source.shape[:2] == source.shape[:2]:
            margins = [margin + before for margin, before in zip(margins, source.leading[2:], strict=True)]
            source = source.source
        source = materialize_unless_input(source)
        window = _Window(source.shape[2:], stride, margins, dilation)
        outs, ins = call.shape[1] // groups, weight.shape[1]

        def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
            group = outer[1] // outs
            x = context.element(source, (outer[0], group * ins + inner[0], *window.at(outer[2:], inner[1:])))
            return context.builder.make("mul", x, context.element(weight, (outer[1], *inner)))

        def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
            return window.guards(outer[2:], inner[1:])

        made: Value = Reduction(
            "sum", call.shape, weight.shape[1:], call.dtype, [source, weight], body, guards
        )
        return add(made, reshaped(bias, (bias.shape[0], *(1,) * dims))) if isinstance(bias, Value) else made

    return handler


HANDLERS: dict[str, Handler] = {
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "linear": _linear,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "scaled_dot_product_attention": _attention,
    **{f"max_pool{d}d": _pool("max", d) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _pool("sum", d) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _adaptive(d) for d in (1, 2, 3)},
    **{f"conv{d}d": _conv(d) for d in (1, 2, 3)},
}
