"""Matrix products, attention, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall
from kernelpro.authors.playbook.graph.reductions import softmax
from kernelpro.authors.playbook.graph.shapes import expanded, permuted, reshaped, swapped
from kernelpro.authors.playbook.graph.value_ops import (
    add,
    broadcast_shape,
    mul,
    op,
    reduce,
    scalar,
    select,
    triangle,
)
from kernelpro.authors.playbook.graph.values import (
    Indices,
    LoweringContext,
    Matmul,
    Reduction,
    Shape,
    Value,
    ZeroPadded,
    materialize_if_staged,
    materialize_unless_input,
)
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import flatten
from kernelpro.authors.playbook.ir.stages import Guard


def matmul(left: Value, right: Value) -> Value:
    """Like torch.matmul: with vectors, batches and broadcasting. Products with a vector become plain
    reductions."""
    a = materialize_if_staged(reshaped(left, (1, *left.shape)) if len(left.shape) == 1 else left)
    b = materialize_if_staged(reshaped(right, (*right.shape, 1)) if len(right.shape) == 1 else right)
    batch = broadcast_shape([a.shape[:-2], b.shape[:-2]])
    rows = left.shape[-2:-1] if len(left.shape) > 1 else ()
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    shape = (*batch, *rows, *columns)
    if b.shape[-1] == 1:
        products = mul(a, swapped(b))
        return reshaped(reduce("sum", products, [len(products.shape) - 1]), shape)
    if a.shape[-2] == 1:
        products = mul(reshaped(a, (*a.shape[:-2], a.shape[-1], 1)), b)
        return reshaped(reduce("sum", products, [len(products.shape) - 2]), shape)
    if len(b.shape) == 2 and len(a.shape) > 2:
        product: Value = Matmul(reshaped(a, (prod(a.shape[:-1]), a.shape[-1])), b)
    else:
        product = Matmul(expanded(a, (*batch, *a.shape[-2:])), expanded(b, (*batch, *b.shape[-2:])))
    return product if product.shape == shape else reshaped(product, shape)


def _matmul(call: OperatorCall) -> Value:
    return matmul(call.value(0), call.value(1))


def _linear(call: OperatorCall) -> Value:
    product, bias = matmul(call.value(0), swapped(call.value(1))), call.optional(2, "bias")
    return add(product, bias) if bias else product


def _addmm(call: OperatorCall) -> Value:
    product, addend = matmul(call.value(1), call.value(2)), call.value(0)
    alpha, beta = call.node.kwargs.get("alpha", 1), call.node.kwargs.get("beta", 1)
    return add(product if alpha == 1 else mul(product, alpha), addend if beta == 1 else mul(addend, beta))


def _einsum(call: OperatorCall) -> Value:
    """An einsum of two operands as one matrix product: each index is batch, row, column or depth."""
    equation, operands = call.get(0, "equation").replace(" ", ""), call.get(1, "tensors")
    inputs, arrow, output = equation.partition("->")
    left, _, right = inputs.partition(",")
    letters = (left, right, output)
    if not arrow or len(operands) != 2 or "." in equation or any(len(set(t)) != len(t) for t in letters):
        raise call.unsupported(f"of {equation}")
    sizes = dict(zip(left, operands[0].shape, strict=True)) | dict(zip(right, operands[1].shape, strict=True))
    batch = [i for i in left if i in right and i in output]
    depth = [i for i in left if i in right and i not in output]
    rows, columns = ([i for i in side if i not in batch + depth] for side in (left, right))
    if not depth or set(rows + columns) - set(output):
        raise call.unsupported(f"of {equation}")

    def arranged(value: Value, letters: str, *groups: list[str]) -> Value:
        order = [letters.index(i) for group in (batch, *groups) for i in group]
        shape = [*(sizes[i] for i in batch), *(prod(sizes[i] for i in group) for group in groups)]
        return reshaped(permuted(value, order), shape)

    product = matmul(arranged(operands[0], left, rows, depth), arranged(operands[1], right, depth, columns))
    unfolded = batch + rows + columns
    result = reshaped(product, [sizes[i] for i in unfolded])
    return permuted(result, [unfolded.index(i) for i in output])


def _attention(call: OperatorCall) -> Value:
    query, key, value = (call.value(i) for i in range(3))
    mask, scale = call.optional(3, "attn_mask"), call.node.kwargs.get("scale")
    if call.get(4, "dropout_p", 0.0) or call.node.kwargs.get("enable_gqa"):
        raise call.unsupported("with dropout or grouped queries")
    scores = mul(matmul(query, swapped(key)), 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    masked = scalar(float("-inf"), scores.dtype)
    if call.get(5, "is_causal", False):
        scores = select(triangle(scores.shape, lower=True), scores, masked, scores.dtype)
    if mask:
        is_bool = mask.dtype == "bool"
        scores = select(mask, scores, masked, scores.dtype) if is_bool else op("add", scores, mask)
    return matmul(softmax(scores, len(scores.shape) - 1), value)


# --- windows -----------------------------------------------------------------------------------------------


def per_dim(argument: Any, count: int, default: int) -> list[int]:
    """One number for each spatial dimension."""
    if argument is None or argument == []:
        return [default] * count
    numbers = [argument] if isinstance(argument, int) else list(argument)
    return [int(number) for number in (numbers * count if len(numbers) == 1 else numbers)]


@dataclass(frozen=True)
class Window:
    """The elements of the source that one output reads, in each spatial dimension."""

    sizes: Sequence[int]
    """Sizes of the source."""
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    def at(self, output: Indices, inner: Indices) -> Indices:
        """The indices into the source, for an output and an element of its window."""
        dims = zip(output, inner, self.stride, self.padding, self.dilation, strict=True)
        return tuple(o * s + i * d - p for o, i, s, p, d in dims)

    def guards(self, output: Indices, inner: Indices) -> tuple[Guard, ...]:
        """Guards for the dimensions in which windows reach beyond the source."""
        guards = [Guard(i, size) for i, size in zip(self.at(output, inner), self.sizes, strict=True)]
        return tuple(g for g in guards if g.index.bounds[0] < 0 or g.index.bounds[1] >= g.size)


def _pooled(
    kind: Literal["sum", "max"],
    source: Value,
    shape: Sequence[int],
    kernel: Sequence[int],
    window: Window,
    domain: tuple[Shape, Shape] | None = None,
) -> Value:
    """The sum or the maximum of each window over the trailing dimensions."""
    first = len(source.shape) - len(kernel)

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        return context.element(source, (*outer[:first], *window.at(outer[first:], inner)))

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        return window.guards(outer[first:], inner)

    return Reduction(kind, shape, kernel, source.dtype, [source], body, guards, domain)


def _pool(kind: Literal["sum", "max"], dims: int) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source = materialize_unless_input(call.value(0))
        kernel = per_dim(call.get(1, "kernel_size"), dims, 1)
        stride = [s or k for s, k in zip(per_dim(call.get(2, "stride"), dims, 0), kernel, strict=True)]
        padding = per_dim(call.get(3, "padding"), dims, 0)
        dilation = per_dim(call.get(4, "dilation") if kind == "max" else None, dims, 1)
        excludes_padding = call.get(5, "count_include_pad", True) is False or call.get(6, "divisor_override")
        if kind == "sum" and any(padding) and excludes_padding:
            raise call.unsupported("with count_include_pad=False or divisor_override")
        window = Window(source.shape[-dims:], stride, padding, dilation)
        numbers = zip(call.shape[-dims:], stride, padding, dilation, kernel, window.sizes, strict=True)
        beyond = any((o - 1) * s - p + d * (k - 1) >= n + p for o, s, p, d, k, n in numbers)
        if beyond and kind == "sum":  # the maximum skips what lies beyond the source
            raise call.unsupported("with ceil_mode")
        pooled = _pooled(kind, source, call.shape, kernel, window)
        return mul(pooled, 1 / prod(kernel)) if kind == "sum" else pooled

    return handler


def _adaptive_avg_pool(dims: int) -> Handler:
    def handler(call: OperatorCall) -> Value:
        source = call.value(0)
        sizes, outputs = source.shape[-dims:], call.shape[-dims:]
        if any(size % out for size, out in zip(sizes, outputs, strict=True)):
            raise call.unsupported("to a size that does not divide the input's")
        kernel = [size // out for size, out in zip(sizes, outputs, strict=True)]
        window = Window(sizes, kernel, [0] * dims, [1] * dims)
        rank = len(source.shape)
        domain = (source.shape, tuple(range(rank - dims, rank))) if prod(outputs) == 1 else None
        return mul(_pooled("sum", source, call.shape, kernel, window, domain), 1 / prod(kernel))

    return handler


def convolution(call: OperatorCall, dims: int, split_groups: bool = False) -> Value:
    """The convolution as a reduction. `split_groups`: the groups have a loop of their own, inside which the
    convolution is a contraction."""
    source, weight, bias = call.value(0), call.value(1), call.optional(2, "bias")
    stride, dilation = (
        per_dim(call.get(3, "stride"), dims, 1),
        per_dim(call.get(5, "dilation"), dims, 1),
    )
    padding, groups = call.get(4, "padding"), call.get(6, "groups", 1)
    if isinstance(padding, str) or len(source.shape) != dims + 2:
        raise call.unsupported("with padding given as text, or without a batch dimension")
    margins = per_dim(padding, dims, 0)
    if isinstance(source, ZeroPadded) and source.source.shape[:2] == source.shape[:2]:
        margins = [margin + lead for margin, lead in zip(margins, source.leading[2:], strict=True)]
        source = source.source
    source, weight = materialize_unless_input(source), materialize_unless_input(weight)
    window = Window(source.shape[2:], stride, margins, dilation)
    group_outputs, group_inputs = call.shape[1] // groups, weight.shape[1]
    loops = call.shape
    if split_groups and 1 < groups < call.shape[1]:
        loops = (call.shape[0], groups, group_outputs, *call.shape[2:])

    def body(outer: Indices, inner: Indices, context: LoweringContext) -> Expr:
        output, spatial = flatten(outer[1:-dims], loops[1:-dims]), outer[-dims:]
        channel = output // group_outputs * group_inputs + inner[0]
        x = context.element(source, (outer[0], channel, *window.at(spatial, inner[1:])))
        return context.builder.make("mul", x, context.element(weight, (output, *inner)))

    def guards(outer: Indices, inner: Indices) -> tuple[Guard, ...]:
        return window.guards(outer[-dims:], inner[1:])

    sources = [source, weight]
    result: Value = Reduction("sum", loops, weight.shape[1:], call.dtype, sources, body, guards)
    result = result if loops == call.shape else reshaped(result, call.shape)
    return add(result, reshaped(bias, (bias.shape[0], *(1,) * dims))) if bias else result


def _conv(dims: int) -> Handler:
    return lambda call: convolution(call, dims)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "linear": _linear,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    **{f"max_pool{d}d": _pool("max", d) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _pool("sum", d) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _adaptive_avg_pool(d) for d in (1, 2, 3)},
    **{f"conv{d}d": _conv(d) for d in (1, 2, 3)},
}
