"""Rule: a sum or mean over the results of a product or convolution is computed on its operands instead.

A product is linear in each operand, so the sum over its columns is the product with the summed columns. The
operators between the product and the reduction form the chain. A chain may add numbers and tensors, and
multiply by factors that are the same for all reduced elements. Anything else (a maximum, an activation, a
second user of the product) rules the rewrite out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.algebra.convolution_sums import sum_over_positions
from kernelpro.authors.playbook.algebra.graph_editor import (
    ROUNDED,
    GraphEditor,
    Rewrite,
    elements,
    operator_name,
)
from kernelpro.authors.playbook.algebra.reductions import ReductionCall, read_reduction
from kernelpro.records import Node

CONVOLUTIONS = {f"conv{d}d": 0 for d in (1, 2, 3)} | {f"conv_transpose{d}d": 1 for d in (1, 2, 3)}
"""For each convolution, the weight's dimension of output channels."""


@dataclass(frozen=True)
class Link:
    """One operator of the chain: x * operand, x + operand, ..."""

    op: str
    """add, sub, mul, div or rsub."""
    operand: Node | float


def move_before_product(editor: GraphEditor, node: Node) -> Rewrite | None:
    """Rule: reduce the operands instead of the results."""
    call = read_reduction(editor, node)
    if call is None or call.kind not in ("sum", "mean") or call.count == 1 or node.dtype not in ROUNDED:
        return None
    chain = read_chain(editor, call)
    if chain is None:
        return None
    product, links = chain
    reduced = _reduced_product(editor, node, call, product)
    if reduced is None:
        return None
    result, saving = reduced
    for link in links:
        result = _apply(editor, node, call, link, result)
    editor.replace(node, editor.reshape(node, result, node.shape))
    what = operator_name(product)
    return Rewrite("reduction before product", f"the {call.kind} of {what}'s results is {saving}")


def read_chain(
    editor: GraphEditor, call: ReductionCall, same_addends: bool = False
) -> tuple[Node, list[Link]] | None:
    """The product, and the chain between it and the reduction, in the order of execution. `same_addends`:
    addends must be the same for all reduced elements, too."""
    links: list[Link] = []
    node = call.source
    while editor.has_one_user(node) and node.dtype in ROUNDED:
        name = operator_name(node)
        if name in ("linear", "matmul", "mm", "bmm") or name in CONVOLUTIONS:
            return node, links[::-1]
        step = _read_link(editor, node, call, same_addends)
        if step is None:
            return None
        node, link = step
        links.append(link)
    return None


def _read_link(
    editor: GraphEditor, node: Node, call: ReductionCall, same_addends: bool
) -> tuple[Node, Link] | None:
    name = operator_name(node)
    if name not in ("add", "sub", "mul", "div") or editor.argument(node, 2, "alpha", 1) != 1:
        return None
    first, second = editor.operand(node, 0), editor.operand(node, 1, "other")
    number = editor.argument(node, 1, "other")
    if first is None or node.kwargs.keys() - {"alpha"} or editor.argument(node, 2, "rounding_mode"):
        return None
    if second is None:
        return (first, Link(name, float(number))) if isinstance(number, (int, float)) else None
    for value, other in ((first, second), (second, first)):
        if (
            value.shape != node.shape
            or not editor.is_independent_of_inputs(other)
            or other.dtype != node.dtype
        ):
            continue
        if (same_addends or name in ("mul", "div")) and not _is_same_along(other, node, call.dims):
            return None
        if value is second and name == "div":
            return None
        return value, Link("rsub" if value is second and name == "sub" else name, other)
    return None


def _is_same_along(operand: Node, node: Node, dims: tuple[int, ...]) -> bool:
    missing = len(node.shape) - len(operand.shape)
    return all(d < missing or operand.shape[d - missing] == 1 for d in dims)


def _apply(editor: GraphEditor, node: Node, call: ReductionCall, link: Link, result: Node) -> Node:
    """Applies a link to the reduced value. In a sum, an addend counts once for each reduced element."""
    factor = call.count if call.kind == "sum" and link.op in ("add", "sub", "rsub") else 1
    if isinstance(link.operand, float):
        return apply_link(editor, node, Link(link.op, link.operand * factor), result)
    operand = _reduced_operand(editor, node, call, link.operand, factor)
    return apply_link(editor, node, Link(link.op, operand), result)


def apply_link(editor: GraphEditor, node: Node, link: Link, result: Node) -> Node:
    """Applies a link to a value as it is."""
    pair = (link.operand, result) if link.op == "rsub" else (result, link.operand)
    return editor.add(node, f"{'sub' if link.op == 'rsub' else link.op}.Tensor", result.shape, *pair)


def _reduced_operand(
    editor: GraphEditor, node: Node, call: ReductionCall, operand: Node, factor: int
) -> Node:
    """The mean of an operand over the reduced dimensions, times `factor`, in a shape that broadcasts."""
    rank = len(call.source.shape)
    padded = editor.reshape(node, operand, (1,) * (rank - len(operand.shape)) + operand.shape)
    varying = [d for d in call.dims if padded.shape[d] > 1]
    value = editor.reduce(node, "mean", padded, varying, keepdim=True)
    return editor.add(node, "mul.Tensor", value.shape, value, float(factor)) if factor != 1 else value


# --- products ---------------------------------------------------------------------------------------------


def _reduced_product(
    editor: GraphEditor, node: Node, call: ReductionCall, product: Node
) -> tuple[Node, str] | None:
    """The reduced product with all dimensions kept, and a description of it; None if the rule does not
    apply."""
    name = operator_name(product)
    if name in CONVOLUTIONS:
        return _reduced_convolution(editor, node, call, product)
    left, right = editor.operand(product, 0), editor.operand(product, 1)
    assert left and right
    if name == "linear":
        return _reduced_linear(editor, node, call, product, left, right)
    if len(left.shape) != len(right.shape) or len(left.shape) < 2:
        return None
    rank = len(left.shape)
    if set(call.dims) - {rank - 1, rank - 2} or left.shape[:-2] != right.shape[:-2]:
        return None
    if rank - 2 in call.dims:
        left = editor.reduce(node, call.kind, left, [rank - 2], keepdim=True)
    if rank - 1 in call.dims:
        right = editor.reduce(node, call.kind, right, [rank - 1], keepdim=True)
    shape = (*left.shape[:-1], right.shape[-1])
    result = editor.add(node, "matmul.default", shape, left, right)
    return result, f"the product of {call.kind}s: {elements(result)} numbers instead of {elements(product)}"


def _reduced_linear(
    editor: GraphEditor, node: Node, call: ReductionCall, product: Node, x: Node, weight: Node
) -> tuple[Node, str] | None:
    if len(x.shape) < 2:
        return None
    last = len(x.shape) - 1
    rows = [d for d in call.dims if d != last]
    factor = prod(x.shape[d] for d in rows) if call.kind == "sum" else 1
    bias = editor.operand(product, 2, "bias")
    x = editor.reduce(node, call.kind, x, rows, keepdim=True)
    if last in call.dims:
        weight = editor.reduce(node, call.kind, weight, [0], keepdim=True)
        bias = editor.reduce(node, call.kind, bias, [0], keepdim=True) if bias else None
    shape = (*x.shape[:-1], weight.shape[0])
    result = editor.add(node, "linear.default", shape, x, weight)
    if bias:
        bias = editor.add(node, "mul.Tensor", bias.shape, bias, float(factor)) if factor != 1 else bias
        result = editor.add(node, "add.Tensor", shape, result, bias)
    if last in call.dims:
        return (
            result,
            f"one dot product per row, with the {call.kind} of the weight's {product.shape[-1]} rows",
        )
    return result, f"the product of the {call.kind} of its {factor or 1} rows"


def _reduced_convolution(
    editor: GraphEditor, node: Node, call: ReductionCall, product: Node
) -> tuple[Node, str] | None:
    name, rank = operator_name(product), len(product.shape)
    spatial = tuple(range(2, rank))
    groups = editor.argument(product, 6, "groups", 1)
    if groups != 1 or rank < 3 or not isinstance(editor.argument(product, 4, "padding", 0), (int, list)):
        return None
    if set(call.dims) <= set(spatial):
        return sum_over_positions(editor, node, call, product)
    if call.dims != (1,):
        return None
    weight, bias = editor.operand(product, 1), editor.operand(product, 2, "bias")
    assert weight
    weight = editor.reduce(node, call.kind, weight, [CONVOLUTIONS[name]], keepdim=True)
    reduced_bias = editor.reduce(node, call.kind, bias, [0], keepdim=True) if bias else None
    shape = (product.shape[0], 1, *product.shape[2:])
    kwargs = {key: value for key, value in product.kwargs.items() if key != "bias"}
    result = editor.add(
        node,
        product.op.removeprefix("aten."),
        shape,
        editor.operand(product, 0),
        weight,
        reduced_bias,
        *product.args[3:],
        **kwargs,
    )
    return (
        result,
        f"one channel, with the {call.kind} of the weight over its {product.shape[1]} output channels",
    )
