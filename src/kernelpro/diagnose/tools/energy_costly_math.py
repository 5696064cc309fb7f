"""Costly arithmetic that memory hides: IEEE division and square root, doubles, accurate functions. It costs no time, but energy."""

from __future__ import annotations

import re

from kernelpro.diagnose.counters import RUNNING
from kernelpro.diagnose.joules import METRICS, without
from kernelpro.diagnose.pipes import MATRIX, hot_code
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.records import Evidence

_STRAY = 0.02
"""Share of doubles below which they are the rarely taken path of a library function."""
_CHEAP = 8
"""Instructions around a function of the special-function unit that need be there."""
_DEAR = 24
"""Instructions that an accurate function takes beyond: expf 8, a division 10, tanhf and powf 20 to 40."""
_NOTICEABLE = 0.03
_CHEAPER = (
    (r"(?<![/*])/(?![/*=])", "a / b: __fdividef(a, b), or a product with one reciprocal for all elements that share b"),
    (
        r"\bsqrtf?\s*\(",
        "sqrtf(x): __fsqrt_rn costs a loop, x * rsqrtf(x) one instruction of the special-function unit and a product",
    ),
    (r"\b(?:expf?|softmax)\s*\(", "expf(x): exp2f(x * 1.4427f), with the factor folded into a scale that is there anyway"),
    (r"\b(?:powf?)\s*\(", "powf(x, n) with a small n: products and square roots"),
    (r"\b(?:tanhf?|erff?)\s*\(", "tanhf, erff: one exp2f and a reciprocal, or tanh.approx.f32 on the special-function unit"),
    (r"\b(?:logf?)\s*\(", "logf(x): __log2f(x) * 0.6931f"),
    (r"\w\s*%\s*\w", "i % n: a mask where n is a power of two, or an index that is carried along instead of divided anew"),
)
"""What is written, and the cheaper equivalent with a relative error of about 2e-7 to 1e-5."""


def look(scene: Scene) -> Found | None:
    hot = hot_code(scene)
    doubles = hot.count("fp64", "dmma")
    doubles = 0.0 if doubles / hot.instructions < _STRAY or "float64" in scene.profile.source else doubles
    functions = hot.count("special")
    gone: dict[str, float] = {}
    if doubles:
        gone = {"fp64": doubles * 2 / 3, "convert": hot.count("convert"), "alu": hot.count("alu") / 2}
    elif functions and not hot.count(*MATRIX):
        kinds = ("fma32", "alu", "convert", "branch", "call")
        around = hot.count(*kinds)
        surplus = min(max(0.0, around - _CHEAP * functions), _DEAR * functions)
        expanded = hot.count("convert", "branch", "call") > 0 and hot.count("fma32") >= 4 * functions
        part = surplus / around if around and expanded else 0.0
        gone = {kind: part * hot.count(kind) for kind in kinds} | {"special": functions / 3}
    share = without(scene, hot, gone) if gone else 0.0
    if share < _NOTICEABLE:
        return None
    what = (
        f"{doubles:.0f} instructions work in double precision"
        if doubles
        else f"{functions:.0f} special functions and their expansions"
    )
    cheaper = [text for pattern, text in _CHEAPER if re.search(pattern, _device_code(scene.profile.source))]
    first = (
        "write constants as floats (0.5f) and compute in float32" if doubles else "use the cheapest form that the tolerance allows"
    )
    return Found(
        evidence=(
            Evidence("double-precision instructions in the hot code", doubles, 0)
            if doubles
            else Evidence("special functions in the hot code", functions),
            Evidence("hot instructions", round(hot.instructions)),
        ),
        cause=f"{what} take {share:.0%} of the kernel's energy beyond what cheaper forms would",
        advice=(
            first + (f": {'; '.join(cheaper[:3])}" if cheaper else ""),
            "move what does not depend on the element out of the loop",
        ),
        saved=share,
        how="instructions that cheaper forms do without, doubles and special functions at three times an ordinary one's energy",
        where=scene.code.get("where", {}).get("fp64" if doubles else "special", ""),
    )


def _device_code(source: str) -> str:
    """Without comments and addresses, in which a slash divides nothing."""
    return re.sub(r"//[^\n]*|/\*.*?\*/|#[^\n]*", "", source, flags=re.S)


TOOL = Tool(
    name="energy_costly_math",
    level="instruction",
    target="cuda",
    look=look,
    trigger=f"doubles, or special functions with more than {_CHEAP} instructions around each, whose cheaper forms would save "
    f"{_NOTICEABLE:.0%} of the kernel's energy",
    remedy="floats; __fdividef, rsqrtf, exp2f and other forms inside the tolerance",
    expects="the energy of the instructions that cheaper forms do without",
    affinity=RUNNING,
    metrics=METRICS,
    objective="energy",
)
