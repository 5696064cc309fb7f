"""Recognizes formulas for which functions.py has one function: exact GELU, Mish, softplus, 2^x, and e^(x -
maximum). In the approximate GELU, an exponential replaces tanh.

It works on expressions, so that it recognizes PyTorch's operator and a formula written out in a module alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, is_number, softplus_argument
from kernelpro.authors.playbook.ir.stages import Program, Stage

_FLOATS = ("float32", "float16", "bfloat16")


def use_composites(program: Program) -> Program:
    """The program with the operations `gelu`, `mish`, `log1p_exp`, `exp2` and `exp_below_0` in place of their
    formulas."""
    return replace(program, stages=tuple(_rewrite_stage(stage) for stage in program.stages))


def _rewrite_stage(stage: Stage) -> Stage:
    builder, memo = ExprBuilder(), dict[Expr, Expr]()
    maxima: dict[str, Expr] = {}
    """By name: each maximum over all elements of the row, with the expression of its elements."""

    def simplify(node: Expr) -> Expr:
        return _composite(builder, node, maxima) if node.dtype in _FLOATS else node

    def rewritten(value: Expr) -> Expr:
        return builder.rewrite(value, simplify, memo)

    for step in stage.reductions:
        value = rewritten(step.value)
        if step.kind == "max" and not step.guards:
            maxima[step.name] = value
    return stage.map_expressions(rewritten)


def _composite(builder: ExprBuilder, node: Expr, maxima: dict[str, Expr]) -> Expr:
    """The node's replacement, or the node itself."""
    if node.op == "exp":
        (x,) = node.args
        if x.op == "sub" and x.args[1].op == "row" and maxima.get(x.args[1].data) is x.args[0]:
            return builder.make("exp_below_0", x)
        scaled = _scaled_by(x, math.log(2))
        return node if scaled is None else builder.make("exp2", scaled)
    if node.op == "add":
        argument = softplus_argument(node)
        if argument is not None:
            return builder.make("log1p_exp", argument)
        return _one_plus_tanh(builder, node) or node
    return (_product(builder, node) or node) if node.op == "mul" else node


def _one_plus_tanh(builder: ExprBuilder, node: Expr) -> Expr | None:
    """1 + tanh(x) as 2 / (1 + e^(-2x)), and y tanh(x) + y as y times that, as in the approximate GELU."""
    left, right = node.args
    factor: Expr | None = None
    if left.op == "mul" and left.args[1].op == "tanh" and left.args[0] is right:
        factor, left = left.args
    elif left.op != "tanh" or not is_number(right, 1.0):
        return None
    doubled = builder.make("mul", left.args[0], builder.const(-2.0, node.dtype))
    divisor = builder.make("add", builder.make("exp", doubled), builder.const(1.0, node.dtype))
    dividend = builder.const(2.0, node.dtype)
    if factor is not None:
        dividend = _scaled_by(factor, 0.5) or builder.make("mul", factor, dividend)
    return builder.make("div", dividend, divisor)


def _product(builder: ExprBuilder, node: Expr) -> Expr | None:
    """Replaces x tanh(log(1 + e^x)) or x (1 + erf(x / sqrt(2))) / 2 inside a product; else None."""
    factors = _factors(node)
    for factor in factors:
        x: Expr | None = None
        scale, name = 1.0, "mish"
        if factor.op == "tanh" and factor.args[0].op == "log1p_exp":
            (x,) = factor.args[0].args
        elif factor.op == "add" and factor.args[0].op == "erf" and is_number(factor.args[1], 1.0):
            x, scale, name = _scaled_by(factor.args[0].args[0], math.sqrt(0.5)), 0.5, "gelu"
        if x is None or x not in factors:
            continue
        rest = list(factors)
        rest.remove(factor)
        rest.remove(x)
        scale = math.prod(f.data for f in rest if f.op == "const") / scale
        result = builder.make("mul", builder.make(name, x), builder.const(scale, node.dtype))
        for other in rest:
            result = result if other.op == "const" else builder.make("mul", result, other)
        return result
    return None


def _factors(node: Expr) -> list[Expr]:
    """The factors of nested products."""
    return [f for arg in node.args for f in _factors(arg)] if node.op == "mul" else [node]


def _scaled_by(node: Expr, factor: float) -> Expr | None:
    """The x in x * factor, or in x / (1 / factor); None if the node has another form."""
    if node.op == "mul":
        return next((node.args[1 - i] for i in (0, 1) if is_number(node.args[i], factor)), None)
    return node.args[0] if node.op == "div" and is_number(node.args[1], 1 / factor) else None
