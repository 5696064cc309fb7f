"""Elementary functions of float in C++ that the compiler vectorizes, unlike calls of libm.

They have no branches, tables or external calls. Polynomials are evaluated in pairs of terms, so that few
operations wait for each other; benchmarks/fit_functions.py computes their coefficients. NaN gives NaN. The
sign of a zero result may differ from libm's. Functions of double remain calls of libm. So does pow, which
needs doubles: in vectors of two, it took 133 cycles for four elements on a Neoverse N1, powf only 110.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FUNCTIONS = {
    "bits_of": """\
static inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
""",
    "float_of": """\
static inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
""",
    "fast_exp": """\
// e^x = 2^n e^r with integer n and |r| <= log(2) / 2. Adding 1.5 * 2^23 rounds to an integer and leaves it in
// the lowest bits; with 126 more they are the exponent of 2^(n - 1). Results below 1.7e-38 become 0.
static inline float fast_exp(float x) {
    const float c = smaller(larger(x, -87.4f), 89.0f);
    const float shifted = c * 1.44269504f + 12583038.0f, n = shifted - 12583038.0f;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f, z = r * r;
    const float tail = (0.49999997f + 0.166665465f * r)
                       + z * ((0.0416674428f + 0.00836625136f * r) + z * 0.00138699578f);
    const float p = (1.0f + r) + z * tail, y = (p + p) * float_of(bits_of(shifted) << 23);
    return x == x ? y : x;
}
""",
    "fast_exp_below_0": """\
// e^x for x <= 0, such as a value minus the maximum: it cannot overflow. Results below 1.2e-38 become 0.
static inline float fast_exp_below_0(float x) {
    const float c = larger(x, -88.0f);
    const float shifted = c * 1.44269504f + 12583039.0f, n = shifted - 12583039.0f;
    const float r = c - n * 0.693147182f, z = r * r;
    const float p = (1.0f + r)
                    + z * ((0.499992311f + 0.166671112f * r) + z * (0.0418901742f + 0.00831281487f * r));
    const float y = p * float_of(bits_of(shifted) << 23);
    return x == x ? y : x;
}
""",
    "fast_exp2": """\
// 2^x = 2^n 2^f with integer n and |f| <= 1/2, as in fast_exp. Results below 1.7e-38 become 0.
static inline float fast_exp2(float x) {
    const float c = smaller(larger(x, -126.0f), 128.4f);
    const float shifted = c + 12583038.0f, f = c - (shifted - 12583038.0f), z = f * f;
    const float p = (1.0f + 0.693147182f * f) + z * ((0.240226492f + 0.0555036739f * f)
                    + z * ((0.00961831119f + 0.00133873825f * f) + z * 0.000153821107f));
    const float y = (p + p) * float_of(bits_of(shifted) << 23);
    return x == x ? y : x;
}
""",
    "fast_expm1": """\
// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), with n and r as in fast_exp.
static inline float fast_expm1(float x) {
    const float c = smaller(larger(x, -25.0f), 89.0f);
    const float shifted = c * 1.44269504f + 12583038.0f, n = shifted - 12583038.0f;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f, z = r * r;
    const float tail = (0.49999997f + 0.166665465f * r)
                       + z * ((0.0416674428f + 0.00836625136f * r) + z * 0.00138699578f);
    const float half = float_of(bits_of(shifted) << 23);  // 2^(n - 1)
    const float y = 2.0f * (half * (r + z * tail) + (half - 0.5f));
    return x == x ? y : x;
}
""",
    "fast_log": """\
// log(x) = e log(2) + log(1 + f), with 1 + f between sqrt(1/2) and sqrt(2). Denormals are scaled by 2^23.
static inline float fast_log(float x) {
    const uint32_t bits = bits_of(x);  // comparing bits is faster than comparing floats that may be NaN
    const bool denormal = bits < 0x00800000u;
    const uint32_t shifted = (denormal ? bits_of(x * 8388608.0f) : bits) - 0x3F3504F3u;
    const float f = float_of((shifted & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f, z = f * f;
    const float e = float((int32_t(shifted) >> 23) - (denormal ? 23 : 0));
    const float p = (0.333333313f - 0.250008196f * f) + z * ((0.200012416f - 0.166234091f * f)
                    + z * ((0.142015815f - 0.131596133f * f) + z * (0.127621993f - 0.0763639957f * f)));
    const float y = e * 0.693359375f + (f + (z * (f * p - 0.5f) - e * 2.12194440e-4f));
    const float special = (bits << 1) == 0 ? -INFINITY : bits == 0x7F800000u ? INFINITY : NAN;
    return bits - 1 < 0x7F7FFFFFu ? y : special;
}
""",
    "fast_log1p": """\
// log(1 + x) = log(u) + (x - (u - 1)) / u, where u is 1 + x rounded.
static inline float fast_log1p(float x) {
    const float u = 1.0f + x, y = fast_log(u), corrected = y + (x - (u - 1.0f)) / u;
    return (bits_of(y) & 0x7F800000u) != 0x7F800000u ? corrected : y;
}
""",
    "fast_tanh": """\
// tanh(a) = -t / (t + 2) with t = e^(-2a) - 1. It rounds to 1 from 9.1 on.
static inline float fast_tanh(float x) {
    const float c = -2.0f * smaller(std::fabs(x), 9.1f);
    const float shifted = c * 1.44269504f + 12583039.0f, n = shifted - 12583039.0f;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f, z = r * r;
    const float tail = (0.49999997f + 0.166665465f * r)
                       + z * ((0.0416674428f + 0.00836625136f * r) + z * 0.00138699578f);
    const float power = float_of(bits_of(shifted) << 23), t = power * (r + z * tail) + (power - 1.0f);
    return x == x ? std::copysign(t / (t + 2.0f), x) : x;
}
""",
    "fast_erf": """\
// erf(a) = 1 - 2^y with y = a P(a). 2^y - 1 is computed as in fast_expm1: small results are accurate too.
static inline float fast_erf(float x) {
    const float c = smaller(std::fabs(x), 4.0f), z = c * c;
    const float high = (0.000211496939f - 0.00238324841f * c)
                       + z * ((0.000900250801f - 0.000165960199f * c) + z * 1.29164673e-05f);
    const float low = (-1.62790704f - 0.918447435f * c) + z * ((-0.14827925f + 0.0276415776f * c) + z * high);
    const float y = c * low, shifted = y + 12583039.0f, f = y - (shifted - 12583039.0f), s = f * f;
    const float q = (0.693147182f + 0.240226492f * f) + s * ((0.0555036739f + 0.00961831119f * f)
                    + s * (0.00133873825f + 0.000153821107f * f));
    const float power = float_of(bits_of(shifted) << 23);
    return x == x ? std::copysign(power * (f * q) + (power - 1.0f), x) : x;
}
""",
    "fast_gelu": """\
// x (1 + erf(x / sqrt(2))) / 2. The error function is x P(x^2) / Q(x^2), which is below -1 at -6 (clamped).
static inline float fast_gelu(float x) {
    const float c = smaller(larger(x, -6.0f), 5.5f), z = c * c, w = z * z;
    const float p = (0.797884524f + 0.066917792f * z)
        + w * ((0.00930296537f + 0.000329147617f * z) + w * (1.26031828e-05f + 4.58623113e-08f * z));
    const float q = (1.0f + 0.250535429f * z)
        + w * ((0.0284161326f + 0.0018606463f * z) + w * (7.21670585e-05f + 1.19902836e-06f * z));
    const float half = 0.5f * x;
    return half + half * larger(c * p / q, -1.0f);
}
""",
    "fast_log1p_exp": """\
// log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|. The logarithm as in fast_log; f: e or (e - 1) / 2.
static inline float fast_log1p_exp(float x) {
    const float e = fast_exp_below_0(-std::fabs(x));
    const bool large = bits_of(e) > 0x3ED413CDu;  // sqrt(2) - 1
    const float f = large ? 0.5f * e - 0.5f : e, z = f * f;
    const float p = (0.333333313f - 0.250008196f * f) + z * ((0.200012416f - 0.166234091f * f)
                    + z * ((0.142015815f - 0.131596133f * f) + z * (0.127621993f - 0.0763639957f * f)));
    return larger(x, 0.0f) + (f + z * (f * p - 0.5f) + (large ? 0.693147182f : 0.0f));
}
""",
    "fast_mish": """\
// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2). It rounds to x from 20 on.
static inline float fast_mish(float x) {
    const float w = fast_exp(smaller(x, 20.0f)), n = w * (w + 2.0f);
    return x * (n / (n + 2.0f));
}
""",
    "quarter_turns": """\
// Returns the integer n nearest to 2 x / pi in the lowest bits, and the angle x - n pi / 2, for |x| < 2^45.
// Doubles keep the angle accurate: pi / 2 is subtracted in three parts, the first two of which have 30 bits.
// For larger x the angle is arbitrary.
static inline uint32_t quarter_turns(float x, float& angle) {
    const double shifted = x * 0.63661977236758134 + 6755399441055744.0, n = shifted - 6755399441055744.0;
    uint64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    const double r = ((x - n * 1.570796325802803) - n * 9.920935791635221e-10) - n * 5.170182981794105e-19;
    angle = smaller(larger(float(r), -0.79f), 0.79f);
    return uint32_t(bits);
}
""",
    "sine_or_cosine": """\
// The sine of angle + turns pi / 2 for |angle| <= pi / 4.
static inline float sine_or_cosine(float angle, uint32_t turns) {
    const float z = angle * angle;
    const float sine = angle + angle * z * (-0.166666552f + z * (0.00833218917f - 0.000195182918f * z));
    const float cosine = 1.0f + z * (-0.5f + z * (0.0416666456f
                         + z * (-0.00138873095f + 2.44323273e-05f * z)));
    return float_of(bits_of((turns & 1) != 0 ? cosine : sine) ^ ((turns & 2) << 30));
}
""",
    "fast_sin": """\
static inline float fast_sin(float x) {
    float angle;
    const uint32_t turns = quarter_turns(x, angle);
    return std::fabs(x) < INFINITY ? sine_or_cosine(angle, turns) : NAN;
}
""",
    "fast_cos": """\
static inline float fast_cos(float x) {
    float angle;
    const uint32_t turns = quarter_turns(x, angle);
    return std::fabs(x) < INFINITY ? sine_or_cosine(angle, turns + 1) : NAN;
}
""",
}
"""C++ source by function name; a function may call those before it."""


@dataclass(frozen=True)
class ErrorBound:
    """The largest error of a function over all floats, checked by tests/authors/test_cpp_functions.py."""

    formula: str
    ulp: float
    """The error, in units in the last place of the exact result."""
    note: str = ""


_FLUSHED = "results below {} become 0"
ACCURACY = {
    "fast_exp": ErrorBound("exp(x)", 1.5, _FLUSHED.format("1.7e-38")),
    "fast_exp_below_0": ErrorBound("exp(x)", 5, f"x <= 0; 3 ulp for x > -30; {_FLUSHED.format('1.2e-38')}"),
    "fast_exp2": ErrorBound("exp2(x)", 1.5, _FLUSHED.format("1.7e-38")),
    "fast_expm1": ErrorBound("expm1(x)", 2.5),
    "fast_log": ErrorBound("log(x)", 1),
    "fast_log1p": ErrorBound("log1p(x)", 2),
    "fast_tanh": ErrorBound("tanh(x)", 3),
    "fast_erf": ErrorBound("erf(x)", 4),
    "fast_gelu": ErrorBound("x (1 + erf(x / sqrt(2))) / 2", 5, "in ulp of x / 2 where x < 0"),
    "fast_log1p_exp": ErrorBound("log(1 + exp(x))", 6, _FLUSHED.format("1.2e-38")),
    "fast_mish": ErrorBound("x tanh(log(1 + exp(x)))", 5, "results below 4e-36 become 0"),
    "fast_sin": ErrorBound("sin(x)", 2, "between -2^45 and 2^45; beyond: arbitrary, from -1 to 1"),
    "fast_cos": ErrorBound("cos(x)", 2, "between -2^45 and 2^45; beyond: arbitrary, from -1 to 1"),
}
"""Error bounds by function name."""


def with_dependencies(names: set[str]) -> list[str]:
    """The source of these functions and of those that they call, callees first."""
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        needed.add(name)
        calls = re.findall(r"\b(\w+)\(", FUNCTIONS[name])
        pending += [callee for callee in calls if callee in FUNCTIONS and callee not in needed]
    return [text for name, text in FUNCTIONS.items() if name in needed]
