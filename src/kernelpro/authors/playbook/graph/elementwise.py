"""Element-wise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall
from kernelpro.authors.playbook.graph.shapes import sliced
from kernelpro.authors.playbook.graph.value_ops import (
    compare,
    convert,
    elementwise,
    elementwise_uncast,
    mul,
    op,
    scalar,
    select,
    sub,
)
from kernelpro.authors.playbook.graph.values import Value
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, ExprBuilder


class _Term:
    """An expression with Python's arithmetic operators, so that formulas read as on paper."""

    def __init__(self, builder: ExprBuilder, expr: Expr):
        self.builder, self.expr = builder, expr

    def _binary(self, name: str, left: _Term | float, right: _Term | float) -> _Term:
        dtype = self.expr.dtype
        a, b = (s.expr if isinstance(s, _Term) else self.builder.const(s, dtype) for s in (left, right))
        return _Term(
            self.builder, self.builder.make(name, a, b, dtype="bool" if name in ("gt", "lt") else dtype)
        )

    def __add__(self, other: _Term | float) -> _Term:
        return self._binary("add", self, other)

    def __sub__(self, other: _Term | float) -> _Term:
        return self._binary("sub", self, other)

    def __rsub__(self, other: float) -> _Term:
        return self._binary("sub", other, self)

    def __mul__(self, other: _Term | float) -> _Term:
        return self._binary("mul", self, other)

    def __truediv__(self, other: _Term | float) -> _Term:
        return self._binary("div", self, other)

    def __rtruediv__(self, other: float) -> _Term:
        return self._binary("div", other, self)

    def __gt__(self, other: _Term | float) -> _Term:
        return self._binary("gt", self, other)

    def __lt__(self, other: _Term | float) -> _Term:
        return self._binary("lt", self, other)

    def __neg__(self) -> _Term:
        return self.apply("neg")

    def apply(self, name: str) -> _Term:
        """Apply a unary operation."""
        return _Term(self.builder, self.builder.make(name, self.expr))

    def max(self, other: float) -> _Term:
        return self._binary("max", self, other)

    def min(self, other: float) -> _Term:
        return self._binary("min", self, other)

    def where(self, if_true: _Term, if_false: _Term | float) -> _Term:
        """Select between two values by this condition."""
        other = (
            if_false.expr if isinstance(if_false, _Term) else self.builder.const(if_false, if_true.expr.dtype)
        )
        return _Term(self.builder, self.builder.make("select", self.expr, if_true.expr, other))


def _log1p_exp(x: _Term) -> _Term:
    """log(1 + exp(x)) without overflow."""
    return x.max(0) + (-x.apply("abs")).apply("exp").apply("log1p")


def _gelu(x: _Term, approximate: str = "none") -> _Term:
    if approximate == "tanh":
        return x * 0.5 * ((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).apply("tanh") + x * 0.5
    return x * 0.5 * ((x * math.sqrt(0.5)).apply("erf") + 1)


def _softplus(x: _Term, beta: float = 1.0, threshold: float = 20.0) -> _Term:
    return (x * beta > threshold).where(x, _log1p_exp(x * beta) * (1 / beta))


def _elu(x: _Term, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> _Term:
    return (x > 0).where(x * scale, (x * inner).apply("expm1") * (alpha * scale))


def _clamp(x: _Term, low: float | None = None, high: float | None = None) -> _Term:
    x = x if low is None else x.max(low)
    return x if high is None else x.min(high)


FORMULAS: Mapping[str, Callable[..., _Term]] = {
    "relu": lambda x: x.max(0),
    "relu6": lambda x: x.max(0).min(6),
    "sigmoid": lambda x: 1 / ((-x).apply("exp") + 1),
    "silu": lambda x: x / ((-x).apply("exp") + 1),
    "gelu": _gelu,
    "hardtanh": lambda x, low=-1.0, high=1.0: x.max(low).min(high),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: x.min(high),
    "hardsigmoid": lambda x: (x * (1 / 6) + 0.5).max(0).min(1),
    "hardswish": lambda x: x * (x + 3).max(0).min(6) * (1 / 6),
    "leaky_relu": lambda x, slope=0.01: (x > 0).where(x, x * slope),
    "elu": _elu,
    "celu": lambda x, alpha=1.0: (x > 0).where(x, (x * (1 / alpha)).apply("expm1") * alpha),
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
    "softplus": _softplus,
    "mish": lambda x: x * _log1p_exp(x).apply("tanh"),
    "log_sigmoid": lambda x: x.min(0) - (-x.apply("abs")).apply("exp").apply("log1p"),
    "hardshrink": lambda x, bound=0.5: (x.apply("abs") > bound).where(x, 0.0),
    "softshrink": lambda x, bound=0.5: x - x.max(-bound).min(bound),
    "threshold": lambda x, bound, value: (x > bound).where(x, float(value)),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sign": lambda x: (x > 0).where(x * 0 + 1, (x < 0).where(x * 0 - 1, 0.0)),
    "exp2": lambda x: (x * math.log(2)).apply("exp"),
    "log2": lambda x: x.apply("log") * (1 / math.log(2)),
    "log10": lambda x: x.apply("log") * (1 / math.log(10)),
    "sinh": lambda x: (x.apply("exp") - (-x).apply("exp")) * 0.5,
    "cosh": lambda x: (x.apply("exp") + (-x).apply("exp")) * 0.5,
}
"""Formulas of operators that take one tensor and numbers."""
_INTEGER_FORMULAS = ("relu", "clamp", "clamp_min", "clamp_max", "square")
_UNARY = ("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos")
_ROUNDING = ("floor", "ceil", "round", "trunc")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGICAL = {
    **dict.fromkeys(("logical_and", "bitwise_and", "__and__"), "and"),
    **dict.fromkeys(("logical_or", "bitwise_or", "__or__"), "or"),
}


def formula(name: str, source: Value, *numbers: float, dtype: str = "", **options: str) -> Value:
    """One of FORMULAS, element by element."""
    return elementwise(
        lambda builder, x: FORMULAS[name](_Term(builder, x), *numbers, **options).expr, source, dtype=dtype
    )


def log1p_exp(source: Value) -> Value:
    """log(1 + exp(x)) without overflow."""
    return elementwise(lambda builder, x: _log1p_exp(_Term(builder, x)).expr, source)


def _formula(call: OperatorCall) -> Value:
    kwargs, numbers = call.node.kwargs, call.node.args[1:]
    options = {"approximate": kwargs["approximate"]} if "approximate" in kwargs else {}
    if call.dtype not in FLOATING and call.name not in _INTEGER_FORMULAS:
        raise call.unsupported(f"of {call.dtype}")
    if any(isinstance(n, (dict, list)) for n in numbers):
        raise call.unsupported("with tensors instead of numbers")
    if {"min", "max"} & kwargs.keys():
        numbers = (call.get(1, "min"), call.get(2, "max"))
    return formula(call.name, call.value(0), *numbers, dtype=call.dtype, **options)


def _add_or_sub(call: OperatorCall) -> Value:
    """The second operand is scaled by `alpha`."""
    first, second, alpha = call.value(0), call.value(1, "other"), call.get(2, "alpha", 1)
    if call.name == "rsub":
        first, second = second, first
    scaled = op("mul", second, scalar(alpha), dtype=call.dtype) if alpha != 1 else second
    return op("add" if call.name == "add" else "sub", first, scaled, dtype=call.dtype)


def _require_floating(call: OperatorCall) -> None:
    if call.dtype not in FLOATING:
        raise call.unsupported(f"of {call.dtype}")


def _div(call: OperatorCall) -> Value:
    _require_floating(call)
    quotient, mode = op("div", call.value(0), call.value(1), dtype=call.dtype), call.get(2, "rounding_mode")
    return op({"floor": "floor", "trunc": "trunc"}[mode], quotient) if mode else quotient


def _pow(call: OperatorCall) -> Value:
    base, power = call.value(0), call.get(1, "exponent")
    if isinstance(power, Value) or (call.dtype not in FLOATING and power not in (1, 2, 3, 4)):
        return op("pow", base, call.value(1), dtype=call.dtype)

    def make(builder: ExprBuilder, x: Expr) -> Expr:
        term = _Term(builder, x)
        if power in (2, 3, 4):
            square = term * term
            return {2: square, 3: square * term, 4: square * square}[int(power)].expr
        if power in (0.5, -0.5):
            return term.apply("sqrt" if power > 0 else "rsqrt").expr
        if power in (-1, -2):
            return (1 / (term if power == -1 else term * term)).expr
        return x if power == 1 else builder.make("pow", x, builder.const(power, call.dtype))

    return elementwise(make, base, dtype=call.dtype)


def _where(call: OperatorCall) -> Value:
    return select(call.value(0), call.value(1, "self"), call.value(2, "other"), call.dtype)


def _masked_fill(call: OperatorCall) -> Value:
    return select(call.value(1), call.value(2), call.value(0), call.dtype)


def _logical_not(call: OperatorCall) -> Value:
    source = call.value(0)
    if source.dtype != "bool" and call.name == "bitwise_not":
        raise call.unsupported(f"of {source.dtype}")
    return elementwise_uncast(
        lambda builder, x: builder.make("not", builder.cast(x, "bool")), source, dtype="bool"
    )


def _logical(call: OperatorCall) -> Value:
    if call.dtype != "bool":
        raise call.unsupported(f"of {call.dtype}")
    return op(_LOGICAL[call.name], call.value(0), call.value(1), dtype="bool")


def _remainder(call: OperatorCall) -> Value:
    """The remainder has the sign of the divisor, as in Python."""
    _require_floating(call)
    x, y = (convert(call.value(i), call.dtype) for i in (0, 1))
    return sub(x, mul(op("floor", op("div", x, y)), y))


def _addcmul_or_addcdiv(call: OperatorCall) -> Value:
    term = op(call.name.removeprefix("addc"), call.value(1), call.value(2), dtype=call.dtype)
    scaled = op("mul", term, scalar(call.get(3, "value", 1)), dtype=call.dtype)
    return op("add", call.value(0), scaled, dtype=call.dtype)


def _lerp(call: OperatorCall) -> Value:
    start = call.value(0)
    return op("add", start, op("mul", call.value(2), op("sub", call.value(1), start)), dtype=call.dtype)


def _glu(call: OperatorCall) -> Value:
    source, dim = call.value(0), call.dim(1, "dim", -1)
    half = source.shape[dim] // 2
    return mul(sliced(source, dim, 0, half), formula("sigmoid", sliced(source, dim, half, half)))


def _unary(call: OperatorCall) -> Value:
    return op(call.name, convert(call.value(0), call.dtype))


def _round(call: OperatorCall) -> Value:
    """Integers are unchanged."""
    if call.overload == "decimals":
        raise call.unsupported("to decimal places")
    return op(call.name, call.value(0)) if call.dtype in FLOATING else call.value(0)


def _binary(name: str) -> Handler:
    return lambda call: op(name, call.value(0), call.value(1), dtype=call.dtype)


def _compare(call: OperatorCall) -> Value:
    return compare(call.name, call.value(0), call.value(1, "other"))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_ROUNDING, _round),
    **dict.fromkeys(FORMULAS, _formula),
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(_LOGICAL, _logical),
    **dict.fromkeys(("add", "sub", "rsub"), _add_or_sub),
    **dict.fromkeys(("logical_not", "bitwise_not"), _logical_not),
    **dict.fromkeys(("addcmul", "addcdiv"), _addcmul_or_addcdiv),
    **dict.fromkeys(("mul", "multiply"), _binary("mul")),
    "maximum": _binary("max"),
    "minimum": _binary("min"),
    "fmod": _binary("fmod"),
    "div": _div,
    "pow": _pow,
    "remainder": _remainder,
    "where": _where,
    "masked_fill": _masked_fill,
    "lerp": _lerp,
    "glu": _glu,
}
