"""Element-wise operators: ATen's name to an expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelpro.authors.playbook.graph.operator_call import (
    Handler,
    OperatorCall,
    compare,
    convert,
    elementwise,
    elementwise_uncast,
    op,
    scalar,
    select,
)
from kernelpro.authors.playbook.graph.shapes import sliced
from kernelpro.authors.playbook.graph.values import Value
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, ExprBuilder


class _Math:
    """Arithmetic on expressions as it is written on paper."""

    def __init__(self, builder: ExprBuilder, expr: Expr):
        self.builder, self.expr = builder, expr

    def _do(self, name: str, left: _Math | float, right: _Math | float) -> _Math:
        kind = self.expr.dtype
        a, b = (
            side.expr if isinstance(side, _Math) else self.builder.const(side, kind) for side in (left, right)
        )
        return _Math(
            self.builder,
            self.builder.make(name, a, b, dtype="bool" if name in ("gt", "lt", "ge", "le") else kind),
        )

    def __add__(self, other: _Math | float) -> _Math:
        return self._do("add", self, other)

    def __sub__(self, other: _Math | float) -> _Math:
        return self._do("sub", self, other)

    def __rsub__(self, other: float) -> _Math:
        return self._do("sub", other, self)

    def __mul__(self, other: _Math | float) -> _Math:
        return self._do("mul", self, other)

    def __truediv__(self, other: _Math | float) -> _Math:
        return self._do("div", self, other)

    def __rtruediv__(self, other: float) -> _Math:
        return self._do("div", other, self)

    def __gt__(self, other: _Math | float) -> _Math:
        return self._do("gt", self, other)

    def __lt__(self, other: _Math | float) -> _Math:
        return self._do("lt", self, other)

    def __neg__(self) -> _Math:
        return self.of("neg")

    def of(self, name: str) -> _Math:
        return _Math(self.builder, self.builder.make(name, self.expr))

    def max(self, other: float) -> _Math:
        return self._do("max", self, other)

    def min(self, other: float) -> _Math:
        return self._do("min", self, other)

    def where(self, yes: _Math | float, no: _Math | float) -> _Math:
        """This being a condition."""
        like = next(side for side in (yes, no) if isinstance(side, _Math))
        a, b = (s.expr if isinstance(s, _Math) else self.builder.const(s, like.expr.dtype) for s in (yes, no))
        return _Math(self.builder, self.builder.make("select", self.expr, a, b))


Formula = Callable[..., _Math]


def softplus(x: _Math) -> _Math:
    """log(1 + exp(x)) without overflow."""
    return x.max(0) + (-x.of("abs")).of("exp").of("log1p")


def _gelu(x: _Math, approximate: str = "none") -> _Math:
    if approximate == "tanh":
        return x * 0.5 * ((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).of("tanh") + x * 0.5
    return x * 0.5 * ((x * math.sqrt(0.5)).of("erf") + 1)


def _softplus(x: _Math, beta: float = 1.0, threshold: float = 20.0) -> _Math:
    return (x * beta > threshold).where(x, softplus(x * beta) * (1 / beta))


def _elu(x: _Math, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> _Math:
    return (x > 0).where(x * scale, (x * inner).of("expm1") * (alpha * scale))


def _clamp(x: _Math, low: float | None = None, high: float | None = None) -> _Math:
    x = x if low is None else x.max(low)
    return x if high is None else x.min(high)


FORMULAS: Mapping[str, Formula] = {
    "relu": lambda x: x.max(0),
    "relu6": lambda x: x.max(0).min(6),
    "sigmoid": lambda x: 1 / ((-x).of("exp") + 1),
    "silu": lambda x: x / ((-x).of("exp") + 1),
    "gelu": _gelu,
    "hardtanh": lambda x, low=-1.0, high=1.0: x.max(low).min(high),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: x.min(high),
    "hardsigmoid": lambda x: (x * (1 / 6) + 0.5).max(0).min(1),
    "hardswish": lambda x: x * (x + 3).max(0).min(6) * (1 / 6),
    "leaky_relu": lambda x, slope=0.01: (x > 0).where(x, x * slope),
    "elu": _elu,
    "celu": lambda x, alpha=1.0: (x > 0).where(x, (x * (1 / alpha)).of("expm1") * alpha),
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
    "softplus": _softplus,
    "mish": lambda x: x * softplus(x).of("tanh"),
    "log_sigmoid": lambda x: x.min(0) - (-x.of("abs")).of("exp").of("log1p"),
    "hardshrink": lambda x, edge=0.5: (x.of("abs") > edge).where(x, 0.0),
    "softshrink": lambda x, edge=0.5: x - x.max(-edge).min(edge),
    "threshold": lambda x, edge, value: (x > edge).where(x, float(value)),
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sign": lambda x: (x > 0).where(x * 0 + 1, (x < 0).where(x * 0 - 1, 0.0)),
    "exp2": lambda x: (x * math.log(2)).of("exp"),
    "log2": lambda x: x.of("log") * (1 / math.log(2)),
    "log10": lambda x: x.of("log") * (1 / math.log(10)),
    "sinh": lambda x: (x.of("exp") - (-x).of("exp")) * 0.5,
    "cosh": lambda x: (x.of("exp") + (-x).of("exp")) * 0.5,
}
"""Of one tensor and numbers."""

_UNARY = ("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos")
_ROUNDED = ("floor", "ceil", "round", "trunc")
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGICAL = {
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "__and__": "and",
    "__or__": "or",
}


def _formula(name: str) -> Handler:
    def handler(call: OperatorCall) -> Value:
        numbers = call.node.args[1:]
        named = {"approximate": call.node.kwargs["approximate"]} if "approximate" in call.node.kwargs else {}
        if not call.dtype.startswith(("float", "bfloat")) and name not in (
            "relu",
            "clamp",
            "clamp_min",
            "clamp_max",
            "square",
        ):
            raise call.unsupported(f"of {call.dtype}")
        if any(isinstance(n, (dict, list)) for n in numbers):
            raise call.unsupported("with tensors for numbers")
        if {"min", "max"} & call.node.kwargs.keys():
            numbers = (call.get(1, "min"), call.get(2, "max"))
        return elementwise(
            lambda builder, x: FORMULAS[name](_Math(builder, x), *numbers, **named).expr,
            call.value(0),
            dtype=call.dtype,
        )

    return handler


def _scaled(name: str) -> Handler:
    """add and sub, whose second operand may be multiplied."""

    def handler(call: OperatorCall) -> Value:
        first, second, factor = call.value(0), call.value(1, "other"), call.get(2, "alpha", 1)
        if name == "rsub":
            first, second = second, first
        scaled = op("mul", second, scalar(factor), dtype=call.dtype) if factor != 1 else second
        return op("add" if name == "add" else "sub", first, scaled, dtype=call.dtype)

    return handler


def _div(call: OperatorCall) -> Value:
    mode = call.get(2, "rounding_mode")
    if call.dtype not in FLOATING:
        raise call.unsupported(f"of {call.dtype}")
    quotient = op("div", call.value(0), call.value(1), dtype=call.dtype)
    return op({"floor": "floor", "trunc": "trunc"}[mode], quotient) if mode else quotient


def _pow(call: OperatorCall) -> Value:
    power = call.get(1, "exponent")
    base = call.value(0)
    if isinstance(power, Value) or (call.dtype not in FLOATING and power not in (1, 2, 3, 4)):
        return op("pow", base, call.value(1), dtype=call.dtype)

    def make(builder: ExprBuilder, x: Expr) -> Expr:
        m = _Math(builder, x)
        if power in (2, 3, 4):
            square = m * m
            return {2: square, 3: square * m, 4: square * square}[int(power)].expr
        if power in (0.5, -0.5):
            return m.of("sqrt" if power > 0 else "rsqrt").expr
        if power in (-1, -2):
            return (1 / (m if power == -1 else m * m)).expr
        return x if power == 1 else builder.make("pow", x, builder.const(power, call.dtype))

    return elementwise(make, base, dtype=call.dtype)


def _where(call: OperatorCall) -> Value:
    return select(call.value(0), call.value(1, "self"), call.value(2, "other"), call.dtype)


def _masked_fill(call: OperatorCall) -> Value:
    return select(call.value(1), call.value(2), call.value(0), call.dtype)


def _logical_not(call: OperatorCall) -> Value:
    source = call.value(0)
    if source.dtype != "bool" and "bitwise" in call.node.op:
        raise call.unsupported(f"of {source.dtype}")
    return elementwise_uncast(
        lambda builder, x: builder.make("not", builder.cast(x, "bool")), source, dtype="bool"
    )


def _logical(name: str) -> Handler:
    def handler(call: OperatorCall) -> Value:
        if call.dtype != "bool":
            raise call.unsupported(f"of {call.dtype}")
        return elementwise(
            lambda builder, a, b: builder.make(name, a, b), call.value(0), call.value(1), dtype="bool"
        )

    return handler


def _remainder(call: OperatorCall) -> Value:
    """With the divisor's sign, as Python's."""

    def make(builder: ExprBuilder, a: Expr, b: Expr) -> Expr:
        x, y = _Math(builder, a), _Math(builder, b)
        return (x - (x / y).of("floor") * y).expr

    if call.dtype not in FLOATING:
        raise call.unsupported(f"of {call.dtype}")
    return elementwise(make, call.value(0), call.value(1), dtype=call.dtype)


def _addc(name: str) -> Handler:
    def handler(call: OperatorCall) -> Value:
        joint = op(name, call.value(1), call.value(2), dtype=call.dtype)
        return op(
            "add",
            call.value(0),
            op("mul", joint, scalar(call.get(3, "value", 1)), dtype=call.dtype),
            dtype=call.dtype,
        )

    return handler


def _lerp(call: OperatorCall) -> Value:
    start = call.value(0)
    return op("add", start, op("mul", call.value(2), op("sub", call.value(1), start)), dtype=call.dtype)


def _glu(call: OperatorCall) -> Value:
    source, dim = call.value(0), call.get(1, "dim", -1) % len(call.shape)
    half = source.shape[dim] // 2
    gate = elementwise(
        lambda builder, x: FORMULAS["sigmoid"](_Math(builder, x)).expr, sliced(source, dim, half, half, 1)
    )
    return op("mul", sliced(source, dim, 0, half, 1), gate)


def _unary(name: str) -> Handler:
    return lambda call: op(name, convert(call.value(0), call.dtype))


def _rounded(name: str) -> Handler:
    """To whole numbers, which stay as they are."""

    def handler(call: OperatorCall) -> Value:
        if call.overload == "decimals":
            raise call.unsupported("to other places than the point")
        return op(name, call.value(0)) if call.dtype in FLOATING else call.value(0)

    return handler


def _binary(name: str) -> Handler:
    return lambda call: op(name, call.value(0), call.value(1), dtype=call.dtype)


def _compared(name: str) -> Handler:
    def handler(call: OperatorCall) -> Value:
        return compare(name, call.value(0), call.value(1, "other"))

    return handler


HANDLERS: dict[str, Handler] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _rounded(name) for name in _ROUNDED},
    **{name: _formula(name) for name in FORMULAS},
    **{name: _compared(name) for name in _COMPARED},
    **{name: _logical(joint) for name, joint in _LOGICAL.items()},
    **{name: _scaled(name) for name in ("add", "sub", "rsub")},
    "mul": _binary("mul"),
    "maximum": _binary("max"),
    "minimum": _binary("min"),
    "fmod": _binary("fmod"),
    "div": _div,
    "pow": _pow,
    "remainder": _remainder,
    "where": _where,
    "masked_fill": _masked_fill,
    "logical_not": _logical_not,
    "bitwise_not": _logical_not,
    "addcmul": _addc("mul"),
    "addcdiv": _addc("div"),
    "lerp": _lerp,
    "glu": _glu,
}


def formula(name: str, source: Value, *numbers: float) -> Value:
    """One of FORMULAS, for operators that are made of several."""
    return elementwise(lambda builder, x: FORMULAS[name](_Math(builder, x), *numbers).expr, source)


def softplus_of(source: Value) -> Value:
    return elementwise(lambda builder, x: softplus(_Math(builder, x)).expr, source)
