"""Cheaper formulas on a GPU that are as exact.

tanh(log(1 + e^x))    in Mish: one exponential and one quotient of polynomials. In the epilogue of a
                      convolution, the library's functions took most of the time.
"""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, softplus_argument
from kernelpro.authors.playbook.ir.stages import Program, Stage

_FLOATS = ("float32", "float16", "bfloat16")
_CERTAIN = 10.0
"""Above this value of x, tanh(log(1 + e^x)) is 1 in float32."""


def use_cheaper_formulas(program: Program) -> Program:
    """The program with cheaper formulas."""
    return replace(program, stages=tuple(map(_rewrite, program.stages)))


def _rewrite(stage: Stage) -> Stage:
    builder, memo = ExprBuilder(), dict[Expr, Expr]()

    def simplify(node: Expr) -> Expr:
        if node.op != "tanh" or node.dtype not in _FLOATS:
            return node
        argument = softplus_argument(_without_threshold(node.args[0]))
        return node if argument is None else _tanh_of_softplus(builder, argument)

    return stage.map_expressions(lambda value: builder.rewrite(value, simplify, memo))


def _without_threshold(node: Expr) -> Expr:
    """The softplus in `x if x > threshold else softplus(x)`, whose tanh is the same."""
    if node.op != "select" or node.args[0].op != "gt" or node.args[0].args[0] is not node.args[1]:
        return node
    threshold = node.args[0].args[1]
    return node.args[2] if threshold.op == "const" and threshold.data >= _CERTAIN else node


def _tanh_of_softplus(builder: ExprBuilder, x: Expr) -> Expr:
    """With e = e^-|x|: (1 + 2e) / (1 + 2e + 2e^2) where x >= 0, else (e^2 + 2e) / (e^2 + 2e + 2). No term is
    subtracted, and none overflows."""

    def number(value: float) -> Expr:
        return builder.const(value, x.dtype)

    e = builder.make("exp", builder.make("neg", builder.make("abs", x)))
    doubled, squared = builder.make("mul", e, number(2.0)), builder.make("mul", e, e)
    is_positive = builder.make("ge", x, number(0.0), dtype="bool")
    dividend = builder.make("add", doubled, builder.make("select", is_positive, number(1.0), squared))
    rest = builder.make("select", is_positive, builder.make("mul", squared, number(2.0)), number(2.0))
    return builder.make("div", dividend, builder.make("add", dividend, rest))
