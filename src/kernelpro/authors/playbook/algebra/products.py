"""Rules for products with diagonal matrices, pooled features, transposed convolutions, and shifts that a norm
removes."""

from __future__ import annotations

from kernelpro.authors.playbook.algebra.graph_editor import (
    ROUNDED,
    GraphEditor,
    Rewrite,
    elements,
    operator_name,
)
from kernelpro.authors.playbook.algebra.reductions import per_dim
from kernelpro.records import Node

_NORMS = ("batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "instance_norm")
_MIN_RATIO = 16
"""Flipping weights pays if the result has this many elements for each of theirs: every call flips them."""


def multiply_by_diagonal(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: a product with a diagonal matrix scales rows or columns."""
    if operator_name(node) not in ("mm", "matmul") or node.dtype not in ROUNDED or len(node.shape) != 2:
        return None
    for position, what in ((0, "rows"), (1, "columns")):
        matrix, other = editor.operand(node, position), editor.operand(node, 1 - position)
        if matrix is None or other is None or operator_name(matrix) not in ("diag", "diag_embed"):
            continue
        vector = editor.operand(matrix, 0)
        if vector is None or len(vector.shape) != 1 or editor.argument(matrix, 1, "diagonal", 0):
            continue
        if matrix.kwargs.keys() - {"diagonal"} or len(matrix.args) > 2:
            continue
        scale = editor.reshape(node, vector, (vector.shape[0], 1) if position == 0 else vector.shape)
        editor.replace(node, editor.add(node, "mul.Tensor", node.shape, other, scale))
        return Rewrite(
            "diagonal matrix", f"a product with a diagonal matrix scales the {what} of the other matrix"
        )
    return None


def pool_weights(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: averaging neighbouring features of a linear layer is a linear layer with averaged weights."""
    if operator_name(node) != "avg_pool1d" or node.dtype not in ROUNDED:
        return None
    source = editor.operand(node, 0)
    kernel, stride = _single(editor.argument(node, 1)), _single(editor.argument(node, 2, "stride"))
    padding = _single(editor.argument(node, 3, "padding", 0)) or 0
    if source is None or kernel is None or stride not in (None, kernel) or padding or len(node.args) > 4:
        return None
    reshaped = []
    while operator_name(source) in ("unsqueeze", "view", "reshape", "squeeze"):
        reshaped.append(source)
        inner = editor.operand(source, 0)
        assert inner
        source = inner
    if operator_name(source) != "linear" or not all(map(editor.has_one_user, [*reshaped, source])):
        return None
    features = source.shape[-1]
    x, weight, bias = editor.operand(source, 0), editor.operand(source, 1), editor.operand(source, 2, "bias")
    assert x and weight
    keeps_rows = all(value.shape[-1] == features for value in reshaped)
    if features % kernel or not keeps_rows or node.shape[-1] != features // kernel:
        return None
    grouped = editor.reshape(node, weight, (features // kernel, kernel, weight.shape[1]))
    pooled = editor.reduce(node, "mean", grouped, [1])
    shape = (*x.shape[:-1], features // kernel)
    result = editor.add(node, "linear.default", shape, x, pooled)
    if bias:
        bias = editor.reduce(node, "mean", editor.reshape(node, bias, (features // kernel, kernel)), [1])
        result = editor.add(node, "add.Tensor", shape, result, bias)
    editor.replace(node, editor.reshape(node, result, node.shape))
    return Rewrite(
        "averaged weights",
        f"the average of {kernel} outputs of a linear layer is one output with averaged weights",
    )


def unflip_convolution(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: a transposed convolution with stride 1 is a convolution with flipped weights, for which libraries
    have faster kernels."""
    if not operator_name(node).startswith("conv_transpose") or node.dtype not in ROUNDED:
        return None
    x, weight, bias = editor.operand(node, 0), editor.operand(node, 1), editor.operand(node, 2, "bias")
    assert x and weight
    rank, groups = len(weight.shape) - 2, editor.argument(node, 6, "groups", 1)
    stride = per_dim(editor.argument(node, 3, "stride"), rank, 1)
    padding = per_dim(editor.argument(node, 4, "padding"), rank, 0)
    added = per_dim(editor.argument(node, 5, "output_padding"), rank, 0)
    dilation = per_dim(editor.argument(node, 7, "dilation"), rank, 1)
    margins = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
    if len(node.shape) != rank + 2 or any(added) or set(stride) != {1} or min(margins) < 0:
        return None
    if elements(node) < _MIN_RATIO * elements(weight):
        return None
    inputs, outputs, *sizes = weight.shape
    dims = list(range(2, 2 + rank))
    flipped = editor.add(node, "flip.default", weight.shape, weight, dims)
    flipped = editor.reshape(node, flipped, (groups, inputs // groups, outputs, *sizes))
    shape = (groups, outputs, inputs // groups, *sizes)
    flipped = editor.add(node, "permute.default", shape, flipped, [0, 2, 1, *(d + 1 for d in dims)])
    flipped = editor.reshape(node, flipped, (groups * outputs, inputs // groups, *sizes))
    arguments = x, flipped, bias, stride, margins, dilation, groups
    editor.replace(node, editor.add(node, f"conv{rank}d.default", node.shape, *arguments))
    return Rewrite(
        "flipped weights", "a transposed convolution with stride 1 is a convolution with flipped weights"
    )


def drop_shift_before_norm(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: a norm that subtracts the mean of each channel removes the bias of the convolution before it."""
    name, source = operator_name(node), editor.operand(node, 0)
    if name not in _NORMS or source is None or node.dtype == "float16" or source.dtype not in ROUNDED:
        return None
    own_statistics = editor.argument(
        node, 5, "use_input_stats" if name == "instance_norm" else "training", False
    )
    if own_statistics is not True or not operator_name(source).startswith("conv"):
        return None
    bias = editor.operand(source, 2, "bias")
    if bias is None or not editor.has_one_user(source) or "bias" in source.kwargs:
        return None
    args = [None if position == 2 else arg for position, arg in enumerate(source.args)]
    plain = editor.add(source, source.op.removeprefix("aten."), source.shape, *args, **source.kwargs)
    editor.replace(source, plain)
    return Rewrite("bias before a norm", "the norm subtracts the channel's mean, and with it the bias")


def _single(argument: object) -> int | None:
    if isinstance(argument, list):
        return int(argument[0]) if len(argument) == 1 else None
    return argument if isinstance(argument, int) else None
