"""The sum of a convolution over all positions, as one small product.

For each offset k of its kernel, output o of a convolution reads input o * stride + k * dilation - padding. In
a transposed convolution, input i is added to output i * stride + k * dilation - padding. So the sum over all
outputs is the sum over k of (weight at k) times (sum of the inputs that k meets). Offset k meets all inputs
except a few at the border. Dimension by dimension, the sum of all inputs is computed once, and for each
offset the few inputs that it misses are subtracted.
"""

from __future__ import annotations

from math import prod

from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, operator_name
from kernelpro.records import Node

_MAX_MISSED = 8
"""Most inputs that an offset of the kernel may miss; each costs two operators."""


def sum_over_positions(editor: GraphEditor, node: Node, kind: str, conv: Node) -> tuple[Node, str] | None:
    """The sum or mean over all positions as a product, with all dimensions kept, and a description of it.
    None if an offset misses too many inputs, for example because of a stride."""
    x, weight, bias = editor.operand(conv, 0), editor.operand(conv, 1), editor.operand(conv, 2, "bias")
    assert x and weight
    transposed = operator_name(conv).startswith("conv_transpose")
    rank = len(x.shape) - 2
    stride = _per_dim(editor.argument(conv, 3, "stride"), rank, 1)
    padding = _per_dim(editor.argument(conv, 4, "padding"), rank, 0)
    dilation = _per_dim(editor.argument(conv, 7 if transposed else 5, "dilation"), rank, 1)
    missed = [
        _missed(transposed, x.shape[2 + d], conv.shape[2 + d], k, stride[d], padding[d], dilation[d])
        for d, k in enumerate(weight.shape[2:])
    ]
    if any(len(inputs) > _MAX_MISSED for per_dim in missed for inputs in per_dim):
        return None
    sums = x
    for d in reversed(range(rank)):
        sums = _sums_by_offset(editor, node, sums, 2 + d, missed[d])
    batch, depth = x.shape[0], prod(sums.shape[1:])
    flat = editor.reshape(node, sums, (batch, depth))
    outputs = weight.shape[1] if transposed else weight.shape[0]
    order = [1, 0, *range(2, 2 + rank)] if transposed else list(range(2 + rank))
    shape = [weight.shape[d] for d in order]
    rows = editor.add(node, "permute.default", shape, weight, order) if transposed else weight
    matrix = editor.reshape(node, rows, (outputs, depth))
    result = editor.add(node, "linear.default", (batch, outputs), flat, matrix)
    positions = prod(conv.shape[2:])
    if kind == "mean":
        result = editor.add(node, "mul.Tensor", result.shape, result, 1.0 / positions)
    if bias:
        total = bias if kind == "mean" else editor.add(node, "mul.Tensor", bias.shape, bias, float(positions))
        result = editor.add(node, "add.Tensor", result.shape, result, total)
    words = f"one product with the sums of its inputs over {prod(x.shape[2:])} positions"
    return editor.reshape(node, result, (batch, outputs, *(1,) * rank)), words


def _per_dim(argument: object, rank: int, default: int) -> list[int]:
    if argument is None or argument == []:
        return [default] * rank
    numbers = [argument] if isinstance(argument, int) else list(argument)  # type: ignore[call-overload]
    return numbers * rank if len(numbers) == 1 else numbers


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
