"""C++ words: types, operators, and vector mathematics of our own, because g++ does not vectorise calls into libm."""

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
"""How tensors hold a type."""
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&&", "or": "||"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_CALLS = {
    **{
        op: f"std::{op}"
        for op in (
            "exp",
            "expm1",
            "log",
            "log1p",
            "sqrt",
            "tanh",
            "erf",
            "sin",
            "cos",
            "floor",
            "ceil",
            "trunc",
        )
    },
    "abs": "std::fabs",
    "round": "std::nearbyint",
    "pow": "std::pow",
    "fmod": "std::fmod",
}
FAST_FUNCTIONS = {"exp": "exp_", "expm1": "expm1_", "log": "log_", "log1p": "log1p_", "tanh": "tanh_", "erf": "erf_"}
"""Functions of MATHS that stand for libm's, of float."""


def arithmetic_type(dtype: str) -> str:
    """The type in which arithmetic is done."""
    return "float" if dtype in ("float16", "bfloat16") else STORAGE_TYPES[dtype]


def accumulator_type(dtype: str) -> str:
    """The type for sums of very many numbers."""
    return "double" if dtype in FLOATING else "int64_t"


def identity_element(kind: str, ctype: str) -> str:
    """What a reduction begins with."""
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    limits, floating = f"std::numeric_limits<{ctype}>", ctype in ("float", "double")
    low = f"-{limits}::infinity()" if floating else f"{limits}::lowest()"
    return low if kind == "max" else f"{limits}::infinity()" if floating else f"{limits}::max()"


def combine(kind: str, a: str, b: str) -> str:
    if kind in ("sum", "prod"):
        return f"{a} {'+' if kind == 'sum' else '*'} {b}"
    return f"{'larger' if kind == 'max' else 'smaller'}({a}, {b})"


class CppPrinter(Printer):
    def __init__(self, own_maths: bool, pointers: Mapping[str, str]):
        self._own, self._pointers = own_maths, pointers
        self.used_functions: set[str] = set()
        """Functions of MATHS that were printed."""

    def constant(self, value: float | int | bool, dtype: str) -> str:
        if dtype == "bool":
            return "true" if value else "false"
        if dtype not in FLOATING:
            return f"{value}" if abs(value) < 2**31 else f"{value}LL"
        kind = arithmetic_type(dtype)
        if not math.isfinite(value) or (kind == "float" and abs(value) > 3.4028235e38):
            return (
                "NAN"
                if value != value
                else f"{'-' if value < 0 else ''}{'INFINITY' if kind == 'float' else 'HUGE_VAL'}"
            )
        return repr(float(value)) if kind == "double" else _float(value)

    def load(self, tensor: str, index: str, dtype: str) -> str:
        text = f"{self._pointers[tensor]}[{index}]"
        return {"bfloat16": f"from_bfloat({text})", "float16": f"float({text})"}.get(dtype, text)

    def store(self, tensor: str, index: str, held: str, text: str, dtype: str) -> str:
        """A line that writes `text`, of type `dtype`, to a tensor that holds `held`."""
        if held == "bfloat16":
            text = f"to_bfloat({text})"
        elif STORAGE_TYPES[held] != arithmetic_type(dtype):
            text = f"{STORAGE_TYPES[held]}({text})"
        return f"{self._pointers[tensor]}[{index}] = {text};"

    def declare(self, name: str, dtype: str, text: str) -> str:
        return f"const {arithmetic_type(dtype)} {name} = {text};"

    def operator(self, op: str, args: list[str], node: Expr) -> str:
        kind = arithmetic_type(node.dtype)
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
        if op in FAST_FUNCTIONS and self._own and kind == "float":
            self.used_functions.add(FAST_FUNCTIONS[op])
            return f"{FAST_FUNCTIONS[op]}({args[0]})"
        if op == "abs" and kind not in ("float", "double"):
            return f"std::abs({args[0]})"
        return f"{_CALLS[op]}({', '.join(args)})"

    def reference(self, node: Expr, names: Names) -> str:
        if node.op == "product":
            return f"{node.data[0]}[{self.index(node.data[1], names)}]"
        return str(node.data)


def _float(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"


def math_functions(used: set[str]) -> str:
    """The functions that are used, and those they are made of."""
    wanted = set(used)
    for name, needs in (("tanh_", {"exp_"}), ("erf_", {"exp_"}), ("expm1_", {"exp_"}), ("log1p_", {"log_"})):
        wanted |= needs if name in wanted else set()
    return "\n".join(text for name, text in MATH_FUNCTIONS.items() if name in wanted)


PRELUDE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

template <class T> static inline T larger(T a, T b) { return a > b ? a : b; }
template <class T> static inline T smaller(T a, T b) { return a < b ? a : b; }
#ifdef __aarch64__  // has one instruction for these, where a comparison becomes many
template <> inline float larger(float a, float b) { return std::fmax(a, b); }
template <> inline float smaller(float a, float b) { return std::fmin(a, b); }
#endif
static inline long up(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }  // a / b, rounded up

// Partial results put together.
template <class T, int N> static inline double sum_of(const T (&parts)[N]) {
    double made = 0;
    for (T part : parts) made += part;
    return made;
}
template <class T, int N> static inline double prod_of(const T (&parts)[N]) {
    double made = 1;
    for (T part : parts) made *= part;
    return made;
}
template <class T, int N> static inline T max_of(const T (&parts)[N]) {
    T made = parts[0];
    for (T part : parts) made = larger(made, part);
    return made;
}
template <class T, int N> static inline T min_of(const T (&parts)[N]) {
    T made = parts[0];
    for (T part : parts) made = smaller(made, part);
    return made;
}
"""

HALF = """\
#if defined(__aarch64__)
using Half = __fp16;
#elif defined(__clang__) || __GNUC__ >= 13
using Half = _Float16;
#else  // g++ 12 has no such type in C++
#include <immintrin.h>
struct Half {
    unsigned short bits;
    Half() = default;
    explicit Half(float value) : bits(_cvtss_sh(value, 0)) {}
    operator float() const { return _cvtsh_ss(bits); }
};
#endif
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

MATH_FUNCTIONS = {
    "exp_": """\
// e^x as 2^(n + r) with n whole and a polynomial for 2^r, to 2e-7 of it; beyond the range of float at its ends.
static inline float exp_(float x) {
    x = smaller(larger(x, -87.3f), 88.7f);
    const float shifted = x * 1.44269502f + 12582912.0f;  // 1.5 * 2^23: rounds to whole numbers
    const float r = x * 1.44269502f - (shifted - 12582912.0f) + x * 1.92596299e-8f;  // 1 / log 2 in two parts
    float p = 0.000153532566f;
    p = p * r + 0.00133990039f;
    p = p * r + 0.00961843861f;
    p = p * r + 0.0555033216f;
    p = p * r + 0.240226479f;
    p = p * r + 0.693147203f;
    p = p * r + 1.0f;
    uint32_t bits, n;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&n, &shifted, sizeof n);
    bits += n << 23;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}
""",
    "expm1_": """\
static inline float expm1_(float x) {
    const float big = exp_(x) - 1.0f;
    float p = 0.0013888889f;
    p = p * x + 0.0083333333f;
    p = p * x + 0.0416666667f;
    p = p * x + 0.1666666667f;
    p = p * x + 0.5f;
    const float small = p * x * x + x;
    return std::fabs(x) < 0.25f ? small : big;
}
""",
    "log_": """\
// Natural logarithm of normal numbers to 1e-7: the exponent, and a polynomial around 1 for the rest.
static inline float log_(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t shifted = bits - 0x3F3504F3u;  // the rest lies between sqrt(1/2) and sqrt(2)
    const uint32_t rest = (shifted & 0x007FFFFFu) + 0x3F3504F3u;
    float m;
    std::memcpy(&m, &rest, sizeof m);
    const float e = float(int32_t(shifted) >> 23), f = m - 1.0f, z = f * f;
    float p = 0.0674655944f;
    p = p * f - 0.11679643f;
    p = p * f + 0.11890336f;
    p = p * f - 0.124051381f;
    p = p * f + 0.142192229f;
    p = p * f - 0.166680067f;
    p = p * f + 0.200021337f;
    p = p * f - 0.250000096f;
    p = p * f + 0.333333124f;
    float y = e * -2.12194440e-4f + (p * f * z - 0.5f * z) + f + e * 0.693359375f;
    y = x < INFINITY ? y : x;
    y = x > 0.0f ? y : NAN;
    return x == 0.0f ? -INFINITY : y;
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
    float p = -0.00567930388f;
    p = p * z + 0.0206181219f;
    p = p * z - 0.0537339997f;
    p = p * z + 0.133313836f;
    p = p * z - 0.333332802f;
    const float small = p * z * x + x;
    const float big = 1.0f - 2.0f / (exp_(2.0f * a) + 1.0f);
    return a < 0.625f ? small : std::copysign(big, x);
}
""",
    "erf_": """\
// x P(x^2) up to 1, then 1 - e^-Q(x), which is 1 from 4 on; to 2e-7.
static inline float erf_(float x) {
    const float a = smaller(std::fabs(x), 4.0f), z = a * a;
    float p = 7.88911947e-05f;
    p = p * z - 0.000802084126f;
    p = p * z + 0.00518953534f;
    p = p * z - 0.0268544446f;
    p = p * z + 0.112836002f;
    p = p * z - 0.376126271f;
    p = p * z + 1.12837917f;
    float q = -0.000187972553f;
    q = q * a + 0.00296401431f;
    q = q * a - 0.021906508f;
    q = q * a + 0.103256267f;
    q = q * a + 0.637964927f;
    q = q * a + 1.12720232f;
    q = q * a + 0.000312459737f;
    const float big = std::copysign(1.0f - exp_(-q), x);
    return a < 1.0f ? p * x : big;
}
""",
}
"""Of our own, in terms that vectorise: no table, no branch. The polynomials are least-maximum fits, made for these."""
