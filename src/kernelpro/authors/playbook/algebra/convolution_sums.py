"""The sum of a convolution over positions, as a product or a smaller convolution.

For each offset k of its kernel, output o of a convolution reads input o * stride + k * dilation - padding. In
a transposed convolution, input i is added to output i * stride + k * dilation - padding. So the sum over all
outputs along a dimension is the sum over k of (weight at k) times (sum of the inputs that k meets). Offset k
meets all inputs except a few at the border. Dimension by dimension, the sum of all inputs is computed once,
and for each offset the few inputs that it misses are subtracted. The offsets become channels: of a product
if all dimensions are summed, else of a convolution over the remaining dimensions.
"""

from __future__ import annotations

from math import prod

from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, operator_name
from kernelpro.authors.playbook.algebra.reductions import ReductionCall, per_dim
from kernelpro.records import Node

_MAX_MISSED = 8
"""Most inputs that an offset of the kernel may miss; each costs two operators."""


def sum_over_positions(
    editor: GraphEditor, node: Node, call: ReductionCall, conv: Node
) -> tuple[Node, str] | None:
    """The sum or mean over spatial dimensions, with all dimensions kept, and a description of it. None if an
    offset misses too many inputs, for example because of a stride."""
    x, weight, bias = editor.operand(conv, 0), editor.operand(conv, 1), editor.operand(conv, 2, "bias")
    assert x and weight
    transposed, rank = operator_name(conv).startswith("conv_transpose"), len(x.shape)
    numbers = [
        [0, 0, *per_dim(editor.argument(conv, position, name), rank - 2, default)]
        for position, name, default in (
            (3, "stride", 1),
            (4, "padding", 0),
            (7 if transposed else 5, "dilation", 1),
            (5, "output_padding", 0),
        )
    ]
    stride, padding, dilation, output_padding = numbers
    missed = {
        d: _missed(transposed, x.shape[d], conv.shape[d], weight.shape[d], stride[d], padding[d], dilation[d])
        for d in call.dims
    }
    if any(len(inputs) > _MAX_MISSED for offsets in missed.values() for inputs in offsets):
        return None
    sums = x
    for d in reversed(call.dims):
        sums = _sums_by_offset(editor, node, sums, d, missed[d])
    rest = [d for d in range(2, rank) if d not in call.dims]
    channels, outputs = (0, 1) if transposed else (1, 0)
    depth = prod(weight.shape[d] for d in (channels, *call.dims))
    sums = _permuted(editor, node, sums, [0, 1, *call.dims, *rest])
    sums = editor.reshape(node, sums, (x.shape[0], depth, *(x.shape[d] for d in rest)))
    if transposed and rest:
        weight = _permuted(editor, node, weight, [channels, *call.dims, outputs, *rest])
        shape = (depth, conv.shape[1], *(weight.shape[d] for d in range(rank - len(rest), rank)))
    else:
        weight = _permuted(editor, node, weight, [outputs, channels, *call.dims, *rest])
        shape = (conv.shape[1], depth, *weight.shape[rank - len(rest) :])
    weight = editor.reshape(node, weight, shape)
    positions = prod(conv.shape[d] for d in call.dims)
    if call.kind == "mean":
        weight = editor.add(node, "mul.Tensor", weight.shape, weight, 1.0 / positions)
    elif bias:
        bias = editor.add(node, "mul.Tensor", bias.shape, bias, float(positions))
    shape = (x.shape[0], conv.shape[1], *(conv.shape[d] for d in rest))
    words = f"with the sums of its inputs over {prod(x.shape[d] for d in call.dims)} positions"
    kept = [1 if d in call.dims else size for d, size in enumerate(conv.shape)]
    if not rest:
        result = editor.add(node, "linear.default", shape, sums, weight)
        result = editor.add(node, "add.Tensor", shape, result, bias) if bias else result
        return editor.reshape(node, result, kept), f"one product {words}"
    own = [[each[d] for d in rest] for each in (stride, padding, dilation, output_padding)]
    ending = [own[3], 1, own[2]] if transposed else [own[2], 1]
    name = f"conv_transpose{len(rest)}d" if transposed else f"conv{len(rest)}d"
    overload = "default" if len(rest) == 1 or not transposed else "input"
    result = editor.add(node, f"{name}.{overload}", shape, sums, weight, bias, own[0], own[1], *ending)
    return editor.reshape(node, result, kept), f"a convolution {words}"


def _permuted(editor: GraphEditor, node: Node, source: Node, order: list[int]) -> Node:
    if order == sorted(order):
        return source
    return editor.add(node, "permute.default", [source.shape[d] for d in order], source, order)


def _missed(
    transposed: bool, inputs: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> list[list[int]]:
    """For each offset of the kernel, the inputs along one dimension that it misses."""
    missed = []
    for k in range(kernel):
        shift = k * dilation - padding
        if transposed:
            met = {i for i in range(inputs) if 0 <= i * stride + shift < outputs}
        else:
            met = {o * stride + shift for o in range(outputs)} & set(range(inputs))
        missed.append([i for i in range(inputs) if i not in met])
    return missed


def _sums_by_offset(editor: GraphEditor, node: Node, x: Node, dim: int, missed: list[list[int]]) -> Node:
    """Replaces a spatial dimension by one over offsets: for each, the sum of the inputs that it meets."""
    total = editor.reduce(node, "sum", x, [dim])
    parts = []
    for inputs in missed:
        part = total
        for index in inputs:
            edge = editor.add(node, "select.int", total.shape, x, dim, index)
            part = editor.add(node, "sub.Tensor", total.shape, part, edge)
        parts.append(part)
    shape = (*x.shape[:dim], len(missed), *x.shape[dim + 1 :])
    return editor.add(node, "stack.default", shape, parts, dim)
