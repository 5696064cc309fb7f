"""Rule: fold scales and evaluation-mode batch norms into a convolution's weights.

This pays only if no element-wise operator follows: otherwise that operator's kernel applies the scale for
free. Every call folds the weights again, so they must be small compared with the result.
"""

from __future__ import annotations

from kernelpro.authors.playbook.algebra.graph_editor import (
    ROUNDED,
    GraphEditor,
    Rewrite,
    elements,
    operator_name,
)
from kernelpro.records import Node

_MIN_RATIO = 16
"""The result must have this many elements for each element of the weights."""
_ENDS = (
    "conv",
    "max_pool",
    "avg_pool",
    "adaptive_avg_pool",
    "linear",
    "group_norm",
    "instance_norm",
    "batch_norm",
)
"""Operators (by prefix) that read their input in a kernel of their own."""


def fold_into_convolution(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: a convolution and a scale, or a batch norm with running statistics, become one convolution."""
    name, conv = operator_name(node), editor.operand(node, 0)
    if conv is None or not operator_name(conv).startswith("conv") or not editor.has_one_user(conv):
        return None
    weight, groups = editor.operand(conv, 1), editor.argument(conv, 6, "groups", 1)
    transposed = operator_name(conv).startswith("conv_transpose")
    if weight is None or node.dtype not in ROUNDED or (transposed and groups != 1) or "bias" in conv.kwargs:
        return None
    if elements(conv) < _MIN_RATIO * elements(weight) or not _ends_here(editor, node):
        return None
    if name == "batch_norm" and editor.argument(node, 5, "training", True) is False:
        return _fold_batch_norm(editor, node, conv, weight, transposed)
    number = editor.argument(node, 1, "other")
    if name != "mul" or not isinstance(number, (int, float)) or node.kwargs:
        return None
    scaled = editor.add(node, "mul.Tensor", weight.shape, weight, float(number))
    bias = editor.operand(conv, 2)
    shift = editor.add(node, "mul.Tensor", bias.shape, bias, float(number)) if bias else None
    _replace(editor, node, conv, scaled, shift)
    return Rewrite("scale in weights", f"the factor {number:g} is part of the convolution's weights")


def _fold_batch_norm(
    editor: GraphEditor, node: Node, conv: Node, weight: Node, transposed: bool
) -> Rewrite | None:
    gamma, beta, mean, variance = (editor.operand(node, position) for position in (1, 2, 3, 4))
    if mean is None or variance is None:
        return None
    channels = mean.shape
    shifted = editor.add(node, "add.Tensor", channels, variance, float(editor.argument(node, 7, "eps", 1e-5)))
    scale = editor.add(node, "rsqrt.default", channels, shifted)
    scale = editor.add(node, "mul.Tensor", channels, scale, gamma) if gamma else scale
    ones = (1,) * (len(weight.shape) - 2)
    view = (1, channels[0], *ones) if transposed else (channels[0], 1, *ones)
    scaled = editor.add(node, "mul.Tensor", weight.shape, weight, editor.reshape(node, scale, view))
    bias = editor.operand(conv, 2)
    shift = editor.add(node, "sub.Tensor", channels, bias, mean) if bias else mean
    shift = editor.add(node, "mul.Tensor", channels, shift, scale)
    shift = shift if bias else editor.add(node, "neg.default", channels, shift)
    shift = editor.add(node, "add.Tensor", channels, shift, beta) if beta else shift
    _replace(editor, node, conv, scaled, shift)
    return Rewrite("batch norm in weights", "with running statistics, the norm scales and shifts channels")


def _replace(editor: GraphEditor, node: Node, conv: Node, weight: Node, bias: Node | None) -> None:
    args = (conv.args[0], weight, bias, *conv.args[3:])
    editor.replace(node, editor.add(node, conv.op.removeprefix("aten."), node.shape, *args, **conv.kwargs))


def _ends_here(editor: GraphEditor, node: Node) -> bool:
    """Whether every user reads the value in a kernel of its own, so that a pass over it is saved."""
    return all(user is node or operator_name(user).startswith(_ENDS) for user in editor.users(node))
