"""Rules for pooling: two poolings in a row, and an average over the results of a convolution.

An average of a convolution's results is a weighted sum of inputs at fixed distances: a convolution with a
larger kernel and a larger stride, whose results are already the averages. Where the kernel of the convolution
is a single element, its inputs are averaged instead. With q results to a window, along one dimension:

    convolution   result (o, j) reads input (o * t + j) * s + k * d - p, so its kernel has the elements
                  j * s + k * d, and its stride is t * s
    transposed    result (o, j) reads input i where i * s = o * t + j - k * d + p, so if t is a multiple of
                  s, its kernel has the elements (j - k * d + p) / s, and its stride is t / s

(o, j) is the j-th result in window o; t is the stride of the pooling; s, d, p and k are the stride, the
dilation, the padding and an element of the convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.algebra.graph_editor import (
    ROUNDED,
    GraphEditor,
    Rewrite,
    operator_name,
)
from kernelpro.authors.playbook.algebra.reduction_first import CONVOLUTIONS, apply_link, read_chain
from kernelpro.authors.playbook.algebra.reductions import Pooling, ReductionCall, per_dim, read_pooling
from kernelpro.records import Node

_MAX_ELEMENTS = 12
"""Most elements of the new kernel along one dimension; each is a sum of elements of the old one."""


def merge_poolings(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: two poolings of the same kind in a row, without overlaps, are one with larger windows."""
    outer = read_pooling(editor, node)
    inner = read_pooling(editor, outer.source) if outer else None
    if outer is None or inner is None or outer.kind != inner.kind or not editor.has_one_user(outer.source):
        return None
    if outer.kernel != outer.stride or inner.kernel != inner.stride or node.dtype not in ROUNDED:
        return None
    kernel = [a * b for a, b in zip(outer.kernel, inner.kernel, strict=True)]
    op = f"{outer.kind}_pool{len(kernel)}d.default"
    editor.replace(node, editor.add(node, op, node.shape, inner.source, kernel, kernel))
    return Rewrite("merged poolings", f"two poolings are one with windows of {prod(kernel)} elements")


def average_inside_convolution(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: an average pooling of a convolution's results becomes part of it, or moves before it."""
    pooling = read_pooling(editor, node)
    if pooling is None or pooling.kind != "avg" or node.dtype not in ROUNDED:
        return None
    rank = len(pooling.kernel)
    spatial = tuple(range(2, 2 + rank))
    chain = read_chain(editor, ReductionCall("mean", pooling.source, spatial, True), same_addends=True)
    if chain is None or operator_name(chain[0]) not in CONVOLUTIONS:
        return None
    conv, links = chain
    if len(conv.shape) != 2 + rank or not isinstance(editor.argument(conv, 4, "padding", 0), (int, list)):
        return None
    averaged = _average_inputs(editor, node, pooling, conv) or _average_weights(editor, node, pooling, conv)
    if averaged is None:
        return None
    result, reason = averaged
    for link in links:
        result = apply_link(editor, node, link, result)
    editor.replace(node, result)
    return Rewrite("average inside a convolution", reason)


def _average_inputs(editor: GraphEditor, node: Node, pooling: Pooling, conv: Node) -> tuple[Node, str] | None:
    """The convolution of averaged inputs, if each result reads one position."""
    x, weight = editor.operand(conv, 0), editor.operand(conv, 1)
    assert x and weight
    if prod(weight.shape[2:]) != 1 or x.shape[2:] != conv.shape[2:]:
        return None
    stride, padding, rank = (
        editor.argument(conv, 3, "stride"),
        editor.argument(conv, 4, "padding"),
        len(x.shape) - 2,
    )
    if set(per_dim(stride, rank, 1)) != {1} or set(per_dim(padding, rank, 0)) != {0}:
        return None
    shape = (*x.shape[:2], *node.shape[2:])
    pooled = editor.add(node, operator(node), shape, x, *node.args[1:], **node.kwargs)
    result = editor.add(node, operator(conv), node.shape, pooled, *conv.args[1:], **conv.kwargs)
    return result, "a convolution of single positions reads averaged inputs instead"


@dataclass(frozen=True)
class _Dim:
    """The new convolution along one dimension."""

    elements: list[list[int]]
    """For each element of its kernel, the elements of the old kernel that it is the sum of."""
    stride: int
    before: int
    """Zeros before the first input."""
    after: int
    """Zeros behind the last input that the results need; negative if some inputs are not needed."""


def _average_weights(
    editor: GraphEditor, node: Node, pooling: Pooling, conv: Node
) -> tuple[Node, str] | None:
    """The convolution whose kernel has the average built in, if it is no more work."""
    x, weight, bias = editor.operand(conv, 0), editor.operand(conv, 1), editor.operand(conv, 2, "bias")
    assert x and weight
    transposed, rank = operator_name(conv).startswith("conv_transpose"), len(x.shape) - 2
    groups = editor.argument(conv, 6, "groups", 1)
    if transposed and groups != 1:
        return None
    stride, padding = (
        per_dim(editor.argument(conv, position, name), rank, default)
        for position, name, default in ((3, "stride", 1), (4, "padding", 0))
    )
    dilation = per_dim(editor.argument(conv, 7 if transposed else 5, "dilation"), rank, 1)
    dims: list[_Dim] = []
    for d in range(rank):
        window, step, results = pooling.kernel[d], pooling.stride[d], node.shape[2 + d]
        numbers = weight.shape[2 + d], stride[d], padding[d], dilation[d]
        dim = _transposed_dim(window, step, *numbers) if transposed else _dim(window, step, *numbers)
        if dim is None or not all(dim.elements) or len(dim.elements) > _MAX_ELEMENTS:
            return None
        needed = (results - 1) * dim.stride + len(dim.elements) - dim.before
        dims.append(_Dim(dim.elements, dim.stride, dim.before, needed - x.shape[2 + d]))
    before = prod(k * t for k, t in zip(weight.shape[2:], pooling.stride, strict=True))
    before //= prod(stride) if transposed else 1
    if prod(len(dim.elements) for dim in dims) > before:
        return None
    padded = _pad(editor, node, x, dims)
    if padded is None:
        return None
    source, margins = padded
    kernel = _kernel(editor, node, weight, dims, 1.0 / prod(pooling.kernel))
    if transposed:
        order = [1, 0, *range(2, 2 + rank)]
        kernel = editor.add(node, "permute.default", [kernel.shape[i] for i in order], kernel, order)
    strides, ones = [dim.stride for dim in dims], [1] * rank
    arguments = source, kernel, bias, strides, margins, ones, groups
    result = editor.add(node, f"conv{rank}d.default", node.shape, *arguments)
    sizes = " x ".join(str(len(dim.elements)) for dim in dims)
    return result, f"one convolution with {sizes} elements computes the averages directly"


def _dim(window: int, step: int, kernel: int, stride: int, padding: int, dilation: int) -> _Dim:
    elements: list[list[int]] = [[] for _ in range((window - 1) * stride + (kernel - 1) * dilation + 1)]
    for j in range(window):
        for k in range(kernel):
            elements[j * stride + k * dilation].append(k)
    return _Dim(elements, step * stride, padding, 0)


def _transposed_dim(
    window: int, step: int, kernel: int, stride: int, padding: int, dilation: int
) -> _Dim | None:
    by_offset: dict[int, list[int]] = {}
    for j in range(window):
        for k in range(kernel):
            if (j - k * dilation + padding) % stride == 0:
                by_offset.setdefault((j - k * dilation + padding) // stride, []).append(k)
    if not by_offset or min(by_offset) > 0 or step % stride:
        return None
    offsets = range(min(by_offset), max(by_offset) + 1)
    return _Dim([by_offset.get(offset, []) for offset in offsets], step // stride, -min(by_offset), 0)


def _pad(editor: GraphEditor, node: Node, x: Node, dims: Sequence[_Dim]) -> tuple[Node, list[int]] | None:
    """The input, padded where the two sides differ, and the padding of the convolution. None if the
    convolution had more results than needed."""
    sides = [(dim.before, max(dim.after, 0)) for dim in dims]
    margins = [before for before, _ in sides]
    if not _has_size(node, x.shape[2:], dims, margins, margins):
        if not _has_size(node, x.shape[2:], dims, margins, [after for _, after in sides]):
            return None
        shape = [size + sum(side) for size, side in zip(x.shape[2:], sides, strict=True)]
        widths = [width for side in reversed(sides) for width in side]
        x = editor.add(node, "constant_pad_nd.default", (*x.shape[:2], *shape), x, widths, 0.0)
        margins = [0] * len(dims)
    return x, margins


def _has_size(
    node: Node, sizes: Sequence[int], dims: Sequence[_Dim], before: Sequence[int], after: Sequence[int]
) -> bool:
    """Whether a convolution with these margins has as many results as the node."""
    return all(
        (size + first + last - len(dim.elements)) // dim.stride + 1 == results
        for size, dim, first, last, results in zip(sizes, dims, before, after, node.shape[2:], strict=True)
    )


def _kernel(editor: GraphEditor, node: Node, weight: Node, dims: Sequence[_Dim], factor: float) -> Node:
    """The new kernel: along each dimension, sums of elements of the old one; then scaled."""
    kernel = weight
    for axis, dim in enumerate(dims, 2):
        if [[k] for k in range(kernel.shape[axis])] == dim.elements:
            continue
        shape = (*kernel.shape[:axis], *kernel.shape[axis + 1 :])
        parts = []
        for elements in dim.elements:
            selected = [editor.add(node, "select.int", shape, kernel, axis, k) for k in elements]
            part = selected[0]
            for other in selected[1:]:
                part = editor.add(node, "add.Tensor", shape, part, other)
            parts.append(part)
        shape = (*kernel.shape[:axis], len(parts), *kernel.shape[axis + 1 :])
        kernel = editor.add(node, "stack.default", shape, parts, axis)
    return editor.add(node, "mul.Tensor", kernel.shape, kernel, factor)


def operator(node: Node) -> str:
    """The operator with its overload, as `GraphEditor.add` takes it."""
    return node.op.removeprefix("aten.")
