"""Rules for values that are the same for all finite inputs, reductions over one element, and clamps.

A value computed from inputs becomes a constant only if all operators before it return finite results for
finite inputs. After exp, log or a division, the original may be NaN where the constant is not.
"""

from __future__ import annotations

import math

from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, Rewrite, operator_name
from kernelpro.authors.playbook.algebra.reductions import read_reduction
from kernelpro.records import Node

_STAYS_FINITE = frozenset(
    (
        *("input", "parameter", "linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "add", "sub", "mul", "neg", "abs"),
        *("relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "clamp", "clamp_min"),
        *(
            "clamp_max",
            "sigmoid",
            "tanh",
            "gelu",
            "silu",
            "mish",
            "softplus",
            "elu",
            "selu",
            "softmax",
            "mean",
        ),
        *("sum", "amax", "amin", "max", "min", "getitem", "max_pool1d", "max_pool2d", "max_pool3d"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d"),
        *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "layer_norm", "group_norm"),
        *("instance_norm", "view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose"),
        *("contiguous", "clone", "expand", "full", "zeros", "ones", "dropout", "select", "slice", "stack"),
        *("minimum", "maximum"),
    )
)
"""Operators whose results are finite if their operands are, unless float32 overflows."""
_RESHAPES = ("view", "reshape", "flatten", "squeeze", "unsqueeze", "clone", "contiguous", "dropout")
_RANGES = {
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "abs": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "softplus": (0.0, math.inf),
}
_NUMBERS = {"inf": math.inf, "-inf": -math.inf}
_EXACT = ("float32", "float64")


def reduce_one_element(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: the sum, mean, maximum or logsumexp of one element is that element."""
    call = read_reduction(editor, node)
    if call and call.count == 1:
        editor.replace(node, editor.reshape(node, call.source, node.shape))
        return Rewrite("reduction of one element", f"the {call.kind} of one element is that element")
    extremum = editor.operand(node, 0) if node.op == "getitem" and node.args[1] == 0 else None
    if extremum is None or extremum.op not in ("aten.max.dim", "aten.min.dim"):
        return None
    source, dim = editor.operand(extremum, 0), editor.argument(extremum, 1, "dim")
    assert source
    if source.shape[dim] != 1:
        return None
    editor.replace(node, editor.reshape(node, source, node.shape))
    return Rewrite(
        "reduction of one element", f"the {operator_name(extremum)} of one element is that element"
    )


def fold_constants(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: softmax over one element is 1, and a value minus itself is 0."""
    name, source = operator_name(node), editor.operand(node, 0)
    if source is None or node.dtype not in _EXACT:
        return None
    if name in ("softmax", "_softmax", "log_softmax", "_log_softmax"):
        dim = editor.argument(node, 1, "dim")
        if source.shape[dim] != 1:
            return None
        value, why = (0.0 if "log" in name else 1.0), f"the {name.strip('_')} over one element"
    elif name == "sub" and editor.operand(node, 1, "other") is source:
        if editor.argument(node, 2, "alpha", 1) != 1:
            return None
        value, why = 0.0, "a value minus itself"
    else:
        return None
    if not _is_finite(editor, source):
        return None
    _replace_by_constant(editor, node, value)
    return Rewrite("constant", f"{why} is {value:g} for all finite inputs")


def simplify_clamps(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: drop a clamp that no value reaches, replace one that all values reach, merge two clamps."""
    bounds, source = _clamp_bounds(editor, node), editor.operand(node, 0)
    if bounds is None or source is None or source.dtype != node.dtype:
        return None
    (low, high), (least, most) = bounds, _value_range(editor, source)
    if low <= least and most <= high:
        editor.replace(node, source)
        return Rewrite("clamp without effect", f"the values lie in [{least:g}, {most:g}], inside the clamp")
    if (most <= low or least >= high) and low <= high:
        value = low if most <= low else high
        if node.dtype not in _EXACT or not _is_finite(editor, source):
            return None
        _replace_by_constant(editor, node, value)
        return Rewrite("constant", f"values in [{least:g}, {most:g}] are clamped to {value:g}")
    inner, origin = _clamp_bounds(editor, source), editor.operand(source, 0)
    if (
        inner is None
        or origin is None
        or not editor.has_one_user(source)
        or low > high
        or inner[0] > inner[1]
    ):
        return None
    merged = [min(max(bound, low), high) for bound in inner]
    numbers = [None if math.isinf(bound) else bound for bound in merged]
    editor.replace(node, editor.add(node, "clamp.default", node.shape, origin, *numbers))
    return Rewrite("merged clamps", f"two clamps combine into one to [{merged[0]:g}, {merged[1]:g}]")


def merge_numbers(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: two constant factors, or two constant addends, become one."""
    name, source = operator_name(node), editor.operand(node, 0)
    if name not in ("mul", "div", "add", "sub") or source is None or node.dtype not in _EXACT:
        return None
    outer, inner = _number(editor, node), _number(editor, source)
    origin, before = editor.operand(source, 0), operator_name(source)
    factors = ("mul", "div")
    same_group = (name in factors) == (before in factors) and before in ("mul", "div", "add", "sub")
    if outer is None or inner is None or origin is None or not same_group or not editor.has_one_user(source):
        return None
    if name in factors:
        if (name == "div" and not outer) or (before == "div" and not inner):
            return None
        number = (inner if before == "mul" else 1 / inner) * (outer if name == "mul" else 1 / outer)
    else:
        number = (inner if before == "add" else -inner) + (outer if name == "add" else -outer)
    if not math.isfinite(number):
        return None
    op = "mul" if name in factors else "add"
    editor.replace(node, editor.add(node, f"{op}.Tensor", node.shape, origin, number))
    return Rewrite("merged numbers", f"two {'factors' if op == 'mul' else 'addends'} combine into {number:g}")


def _number(editor: GraphEditor, node: Node) -> float | None:
    """The second operand if it is a number; None if there are options such as alpha or a rounding mode."""
    number = editor.argument(node, 1, "other")
    plain = not node.kwargs and len(node.args) == 2
    return (
        float(number) if plain and isinstance(number, (int, float)) and not isinstance(number, bool) else None
    )


def _replace_by_constant(editor: GraphEditor, node: Node, value: float) -> None:
    editor.replace(node, editor.add(node, "full.default", node.shape, list(node.shape), value))


def _is_finite(editor: GraphEditor, node: Node) -> bool:
    return all(operator_name(ancestor) in _STAYS_FINITE for ancestor in editor.ancestors(node))


def _clamp_bounds(editor: GraphEditor, node: Node) -> tuple[float, float] | None:
    """The bounds of an operator that clamps to constants; None for other operators."""
    name = operator_name(node)
    if name in ("relu", "relu6"):
        return _RANGES[name]
    if name == "hardtanh":
        pair = editor.argument(node, 1, "min_val", -1.0), editor.argument(node, 2, "max_val", 1.0)
    elif name == "clamp":
        pair = editor.argument(node, 1, "min"), editor.argument(node, 2, "max")
    elif name in ("clamp_min", "clamp_max"):
        number = editor.argument(node, 1, "min" if name == "clamp_min" else "max")
        pair = (number, None) if name == "clamp_min" else (None, number)
    else:
        return None
    low, high = (_NUMBERS.get(bound, bound) if isinstance(bound, str) else bound for bound in pair)
    if any(isinstance(bound, dict) for bound in (low, high)):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _value_range(editor: GraphEditor, node: Node) -> tuple[float, float]:
    """An interval that contains all values of a node that are not NaN."""
    while operator_name(node) in _RESHAPES and (source := editor.operand(node, 0)):
        node = source
    if (bounds := _clamp_bounds(editor, node)) and bounds[0] <= bounds[1]:
        return bounds
    if node.op in ("aten.full.default", "aten.scalar_tensor.default"):
        number = node.args[-1] if node.args else None
        return (float(number), float(number)) if isinstance(number, (int, float)) else (-math.inf, math.inf)
    low, high = _RANGES.get(operator_name(node), (-math.inf, math.inf))
    if operator_name(node) in ("minimum", "maximum", "min", "max") and len(node.args) == 2:
        operands = [editor.operand(node, position) for position in (0, 1)]
        if all(operands):
            ranges = [_value_range(editor, operand) for operand in operands if operand]
            choose = min if operator_name(node).startswith("min") else max
            return choose(r[0] for r in ranges), choose(r[1] for r in ranges)
    return low, high
