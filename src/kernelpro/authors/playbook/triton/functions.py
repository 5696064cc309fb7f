"""Triton source of functions that `tl` lacks, and faster versions of some that it has.

A candidate contains only the functions that its kernels call.
"""

from __future__ import annotations

from collections.abc import Mapping

LIBDEVICE = "from triton.language.extra import libdevice\n"


def functions(used: set[str], math_mode: str) -> list[str]:
    """The source of the functions in `used` and of those that they call, in the version for the math mode."""
    versions = dict(FUNCTIONS)
    versions |= FAST if math_mode != "library" else {}
    versions |= APPROXIMATE if math_mode == "approximate" else {}
    needed = used | ({"trunc_"} if "fmod_" in used else set())
    return [text for name, text in versions.items() if name in needed]


_TANH = """\
@triton.jit
def tanh_(x):
    a, z = tl.abs(x), x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = ((p * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1
    t = {power}
    big = {quotient}
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0, -big, big))
"""

FUNCTIONS: Mapping[str, str] = {
    "finish_product": """\
WGMMA = tl.constexpr(torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9)


@triton.jit
def finish_product(k):
    # wgmma reads the left operand from registers that Triton 3.6 overwrites too early
    if WGMMA:
        wait: tl.constexpr = "wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;"
        tl.inline_asm_elementwise(wait, "=r,r", [k], dtype=tl.int32, is_pure=False, pack=1)
""",
    "multiply": """\
@triton.jit
def multiply(a, b):
    return a * b
""",
    "maximum": """\
@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "minimum": """\
@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "tanh_": _TANH.format(power="tl.exp(-2.0 * a)", quotient="(1.0 - t) / (1.0 + t)"),
    "expm1_": """\
@triton.jit
def expm1_(x):
    p = x * (8.33333333e-3 + x * 1.38888889e-3) + 4.16666667e-2
    p = x * (1.0 + x * (0.5 + x * (1.66666667e-1 + x * p)))
    return tl.where(tl.abs(x) < 0.25, p, tl.exp(x) - 1.0)
""",
    "log1p_": """\
@triton.jit
def log1p_(x):
    u = 1.0 + x
    d = u - 1.0
    y = tl.log(u) * (x / tl.where(d == 0.0, 1.0, d))  # corrects the rounding error of 1 + x
    return tl.where(d == 0.0, x, tl.where(u == float("inf"), u, y))
""",
    "round_": """\
@triton.jit
def round_(x):  # ties to even
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5) != 0.0
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)
""",
    "trunc_": """\
@triton.jit
def trunc_(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
""",
    "fmod_": """\
@triton.jit
def fmod_(x, y):
    return x - trunc_(x / y) * y
""",
    "pow_": """\
@triton.jit
def pow_(x, y):
    size = tl.exp(y * tl.log(tl.abs(x)))
    whole = tl.floor(y + x * 0.0)
    odd = whole - 2.0 * tl.floor(whole * 0.5) != 0.0
    signed = tl.where(whole == y, tl.where(odd, -size, size), float("nan"))
    return tl.where(y + x * 0.0 == 0.0, 1.0, tl.where(x < 0.0, signed, size))
""",
}

FAST: Mapping[str, str] = {
    "exp_": """\
@triton.jit
def exp_(x):
    return tl.exp2(1.4426950408889634 * x)
""",
    "log_": """\
@triton.jit
def log_(x):
    return libdevice.fast_logf(x)
""",
    "divide": """\
@triton.jit
def divide(a, b):
    return libdevice.fast_dividef(a, b)
""",
    "tanh_": _TANH.format(
        power="tl.exp2(-2.8853900817779268 * a)", quotient="libdevice.fast_dividef(1.0 - t, 1.0 + t)"
    ),
}
"""Accurate to a few ulp. Faster than `tl.exp` and `/`, which handle denormals, and `tl.log` (27
instructions)."""

APPROXIMATE: Mapping[str, str] = {
    "tanh_": """\
@triton.jit
def tanh_(x):  # 1 - 2 / (e^2x + 1); absolute error 1e-7
    return 1.0 - libdevice.fast_dividef(2.0, tl.exp2(2.8853900817779268 * x) + 1.0)
""",
    "erf_": """\
@triton.jit
def erf_(x):  # 1 - 2^p(|x|); absolute error 1e-7
    t = tl.abs(x)
    p = (-4.53608045e-5 * t + 4.45523037e-4) * t - 1.48948363e-3
    p = ((p * t - 7.74572720e-4) * t + 2.82536410e-2) * t - 1.48481607e-1
    p = ((p * t - 9.18416381e-1) * t - 1.62790859) * t
    big = 1.0 - tl.exp2(p)
    return tl.where(x < 0, -big, big)
""",
    "log1p_": """\
@triton.jit
def log1p_(x):
    return libdevice.fast_logf(1.0 + x)
""",
}
"""With float32's absolute accuracy only: results near zero have few correct digits."""
