"""C++ words: types, operators, and vector mathematics of our own, because g++ does not vectorise calls into libm."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kernelpro.authors.playbook.expressions import FLOATING, Expr
from kernelpro.authors.playbook.printing import Names, Printer

STORED = {
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "uint16_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
"""How tensors hold a type."""
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&&", "or": "||"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {
    **{op: f"std::{op}" for op in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "trunc")},
    "abs": "std::fabs",
    "round": "std::nearbyint",
    "pow": "std::pow",
    "fmod": "std::fmod",
}
OWN = {"exp": "exp_", "expm1": "expm1_", "log": "log_", "log1p": "log1p_", "tanh": "tanh_", "erf": "erf_"}
"""Functions of MATHS that stand for libm's, of float."""


def computed(dtype: str) -> str:
    """The type in which arithmetic is done."""
    return "float" if dtype in ("float16", "bfloat16") else STORED[dtype]


def wide(dtype: str) -> str:
    """The type for sums of very many numbers."""
    return "double" if dtype in FLOATING else "int64_t"


def identity(kind: str, ctype: str) -> str:
    """What a reduction begins with."""
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    limits, floating = f"std::numeric_limits<{ctype}>", ctype in ("float", "double")
    low = f"-{limits}::infinity()" if floating else f"{limits}::lowest()"
    return low if kind == "max" else f"{limits}::infinity()" if floating else f"{limits}::max()"


def combined(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    return f"{'larger' if kind == 'max' else 'smaller'}({a}, {b})"


class CppPrinter(Printer):
    def __init__(self, own_maths: bool, pointers: Mapping[str, str]):
        self._own, self._pointers = own_maths, pointers
        self.used: set[str] = set()
        """Functions of MATHS that were printed."""

    def constant(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        if dtype not in FLOATING:
            return f"{value}" if abs(value) < 2**31 else f"{value}LL"
        kind = computed(dtype)
        if not math.isfinite(value) or (kind == "float" and abs(value) > 3.4028235e38):
            return "NAN" if value != value else f"{'-' if value < 0 else ''}{'INFINITY' if kind == 'float' else 'HUGE_VAL'}"
        return repr(float(value)) if kind == "double" else _float(value)

    def load(self, tensor: str, index: str, dtype: str) -> str:
        text = f"{self._pointers[tensor]}[{index}]"
        return {"bfloat16": f"from_bfloat({text})", "float16": f"float({text})"}.get(dtype, text)

    def stored(self, tensor: str, index: str, held: str, text: str, dtype: str) -> str:
        """A line that writes `text`, of type `dtype`, to a tensor that holds `held`."""
        if held == "bfloat16":
            text = f"to_bfloat({text})"
        elif STORED[held] != computed(dtype):
            text = f"{STORED[held]}({text})"
        return f"{self._pointers[tensor]}[{index}] = {text};"

    def declared(self, name: str, dtype: str, text: str) -> str:
        return f"const {computed(dtype)} {name} = {text};"

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        kind = computed(node.dtype)
        if op == "cast":
            return f"({args[0]} != 0)" if node.dtype == "bool" else f"{kind}({args[0]})"
        if op == "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        if op in ("max", "min"):
            return f"{'larger' if op == 'max' else 'smaller'}({args[0]}, {args[1]})"
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op in _COMPARED:
            return f"({args[0]} {_COMPARED[op]} {args[1]})"
        if op in ("neg", "not"):
            return f"({'-' if op == 'neg' else '!'}{args[0]})"
        if op == "rsqrt":
            return f"({self.constant(1.0, node.dtype)} / std::sqrt({args[0]}))"
        if op in OWN and self._own and kind == "float":
            self.used.add(OWN[op])
            return f"{OWN[op]}({args[0]})"
        if op == "abs" and kind not in ("float", "double"):
            return f"std::abs({args[0]})"
        return f"{_CALLS[op]}({', '.join(args)})"

    def special(self, node: Expr, names: Names) -> str:
        if node.op == "product":
            return f"{node.data[0]}[{self.index(node.data[1], names)}]"
        return str(node.data)


def _float(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"


def maths(used: set[str]) -> str:
    """The functions that are used, and those they are made of."""
    wanted = set(used)
    for name, needs in (("tanh_", {"exp_"}), ("erf_", {"exp_"}), ("expm1_", {"exp_"}), ("log1p_", {"log_"})):
        wanted |= needs if name in wanted else set()
    return "\n".join(text for name, text in MATHS.items() if name in wanted)


PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

template <class T> static inline T larger(T a, T b) { return a > b ? a : b; }
template <class T> static inline T smaller(T a, T b) { return a < b ? a : b; }
static inline long up(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }  // a / b, rounded up

// Partial results put together.
template <class T, int N> static inline double sum_of(const T (&parts)[N]) { double r = 0; for (T part : parts) r += part; return r; }
template <class T, int N> static inline double prod_of(const T (&parts)[N]) { double r = 1; for (T part : parts) r *= part; return r; }
template <class T, int N> static inline T max_of(const T (&parts)[N]) { T r = parts[0]; for (T part : parts) r = larger(r, part); return r; }
template <class T, int N> static inline T min_of(const T (&parts)[N]) { T r = parts[0]; for (T part : parts) r = smaller(r, part); return r; }
"""

BFLOAT = """\
static inline float from_bfloat(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint16_t to_bfloat(float value) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7FC0 : uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
"""

MATHS = {
    "exp_": """\
// e^x to 2 units in the last place: 2^(n + r) with n whole, a polynomial for 2^r, n added to the exponent in two halves.
static inline float exp_(float x) {
    float t = x * 1.44269504f;
    t = t > 129.0f ? 129.0f : t;
    t = t < -151.0f ? -151.0f : t;
    const float shifted = t + 12582912.0f, whole = shifted - 12582912.0f;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // log 2 in two parts
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t n = int32_t(whole), half = n >> 1;
    const uint32_t low = uint32_t(half + 127) << 23, high = uint32_t(n - half + 127) << 23;
    float a, b;
    std::memcpy(&a, &low, sizeof a);
    std::memcpy(&b, &high, sizeof b);
    p = p * a * b;
    return t <= -151.0f ? 0.0f : p;
}
""",
    "expm1_": """\
static inline float expm1_(float x) {
    const float big = exp_(x) - 1.0f;
    const float small = x * (1.0f + x * (0.5f + x * (1.66666667e-1f + x * (4.16666667e-2f + x * (8.33333333e-3f + x * 1.38888889e-3f)))));
    return x < 0.25f && x > -0.25f ? small : big;
}
""",
    "log_": """\
// Natural logarithm of normal numbers: the exponent, and a polynomial around 1 for the mantissa.
static inline float log_(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t shifted = bits - 0x3F3504F3u;  // mantissas from sqrt(1/2) to sqrt(2)
    const int32_t e = int32_t(shifted) >> 23;
    const uint32_t mantissa = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    float m;
    std::memcpy(&m, &mantissa, sizeof m);
    const float f = m - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const float y = float(e) * -2.12194440e-4f + (p * f * z - 0.5f * z) + f + float(e) * 0.693359375f;
    const float edge = x > 0.0f ? x : x == 0.0f ? -INFINITY : NAN;  // 0, negative, infinite, not a number
    return x > 0.0f && x < INFINITY ? y : edge;
}
""",
    "log1p_": """\
static inline float log1p_(float x) {
    const float u = 1.0f + x, d = u - 1.0f;
    const float y = log_(u) * (x / (d == 0.0f ? 1.0f : d));  // makes good what 1 + x has lost
    return d == 0.0f ? x : u == INFINITY ? u : y;
}
""",
    "tanh_": """\
static inline float tanh_(float x) {
    const float a = std::fabs(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float small = p * z * x + x;
    const float big = 1.0f - 2.0f / (exp_(2.0f * a) + 1.0f);
    return a < 0.625f ? small : std::copysign(big, x);
}
""",
    "erf_": """\
// A polynomial up to 1, and beyond it 1 - exp(-x^2) t P(t) with t = 1 / (1 + x / 2): 2e-7 at most.
static inline float erf_(float x) {
    const float a = std::fabs(x), z = x * x;
    float s = 7.853861353153693e-5f;
    s = s * z - 8.010193625184903e-4f;
    s = s * z + 5.188327685732524e-3f;
    s = s * z - 2.685381193529856e-2f;
    s = s * z + 1.128358514861418e-1f;
    s = s * z - 3.761262582423300e-1f;
    s = s * z + 1.128379165726710f;
    const float t = 1.0f / (1.0f + 0.5f * a);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    const float big = 1.0f - t * exp_(-z - 1.26551223f + t * p);
    return a < 1.0f ? s * x : std::copysign(big, x);
}
""",
}
"""Of our own, in terms that vectorise: no table, no branch."""
