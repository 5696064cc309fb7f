"""C++ syntax: types, operators and functions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelpro.authors.playbook.codegen.printer import Names, Printer
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr

STORAGE_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "Half",
    "bfloat16": "uint16_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "bool": "bool",
}
"""The C++ type of a tensor's elements, by dtype."""
FAST_FUNCTIONS = {
    op: f"fast_{op}"
    for op in (
        *("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"),
        *("exp2", "exp_below_0", "gelu", "log1p_exp", "mish"),
    )
}
"""Functions of functions.py by operation; composites.py introduces the last five operations."""
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&&",
    "or": "||",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
_EXTREMA = {"max": "maximum", "min": "minimum"}
_LIBRARY = {"abs": "std::fabs", "round": "std::nearbyint"}
"""Functions whose name in <cmath> differs from the operation's name."""


def arithmetic_type(dtype: str) -> str:
    """The type in which a value is computed."""
    return "float" if dtype in ("float16", "bfloat16") else STORAGE_TYPES[dtype]


def accumulator_type(dtype: str) -> str:
    """The type in which totals and scans accumulate: they combine very many values."""
    return "double" if dtype in FLOATING else "int64_t"


def identity_element(kind: str, ctype: str) -> str:
    """The identity element of a reduction, with which it starts."""
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    limits, floating = f"std::numeric_limits<{ctype}>", ctype in ("float", "double")
    if kind == "max":
        return f"-{limits}::infinity()" if floating else f"{limits}::lowest()"
    return f"{limits}::infinity()" if floating else f"{limits}::max()"


def combine(kind: str, a: str, b: str) -> str:
    """The expression that combines two partial results of a reduction."""
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    return f"{_EXTREMA[kind]}({a}, {b})"


class CppPrinter(Printer):
    """Prints expressions in C++; `pointers` names the kernel's argument for each tensor."""

    def __init__(self, fast_math: bool, pointers: Mapping[str, str]):
        self._fast_math, self._pointers = fast_math, pointers
        self.used_functions: set[str] = set()
        """The functions of functions.py that the printed code calls."""

    def constant(self, value: float | int | bool, dtype: str) -> str:
        """Write a constant."""
        if dtype == "bool":
            return "true" if value else "false"
        if dtype not in FLOATING:
            return f"{value}" if abs(value) < 2**31 else f"{value}LL"
        is_float = arithmetic_type(dtype) == "float"
        if value != value:
            return "NAN"
        if math.isinf(value) or (is_float and abs(value) > 3.4028235e38):
            return f"{'-' if value < 0 else ''}{'INFINITY' if is_float else 'HUGE_VAL'}"
        return _float_literal(value) if is_float else repr(float(value))

    def load(self, tensor: str, index: str, dtype: str) -> str:
        """Write a load."""
        text = f"{self._pointers[tensor]}[{index}]"
        return {"bfloat16": f"bfloat16_to_float({text})", "float16": f"float({text})"}.get(dtype, text)

    def store(self, tensor: str, index: str, tensor_dtype: str, text: str, dtype: str) -> str:
        """A statement that writes `text`, of type `dtype`, to an element of a tensor."""
        if tensor_dtype == "bfloat16":
            text = f"float_to_bfloat16({text})"
        elif STORAGE_TYPES[tensor_dtype] != arithmetic_type(dtype):
            text = f"{STORAGE_TYPES[tensor_dtype]}({text})"
        return f"{self._pointers[tensor]}[{index}] = {text};"

    def declare(self, name: str, dtype: str, text: str) -> str:
        """Write a declaration."""
        return f"const {arithmetic_type(dtype)} {name} = {text};"

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        """Write an operator or function call."""
        ctype = arithmetic_type(node.dtype)
        if op == "cast":
            return f"({args[0]} != 0)" if node.dtype == "bool" else f"{ctype}({args[0]})"
        if op == "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if op in _EXTREMA:
            return f"{_EXTREMA[op]}({args[0]}, {args[1]})"
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op in ("neg", "not"):
            return f"({'-' if op == 'neg' else '!'}{args[0]})"
        if op == "rsqrt":
            return f"({self.constant(1.0, node.dtype)} / std::sqrt({args[0]}))"
        if op in FAST_FUNCTIONS and self._fast_math and ctype == "float":
            self.used_functions.add(FAST_FUNCTIONS[op])
            return f"{FAST_FUNCTIONS[op]}({', '.join(args)})"
        if op == "abs" and ctype not in ("float", "double"):
            return f"std::abs({args[0]})"
        return f"{_LIBRARY.get(op, f'std::{op}')}({', '.join(args)})"

    def reference(self, node: Expr, names: Names) -> str:
        """Write a reference to a named value."""
        if node.op == "product":
            return f"{node.data[0]}[{self.index(node.data[1], names)}]"
        return str(node.data)


def _float_literal(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"
