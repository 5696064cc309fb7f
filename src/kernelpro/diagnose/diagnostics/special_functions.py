"""Transcendental functions that cost more than the rest of the kernel: accurate versions, or a full special-function pipe."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import MATRIX, XU, hot_code, time_saved
from kernelpro.records import Evidence

_NOTICEABLE = 0.05
"""Share of the kernel below which a remedy cannot be told from noise."""
_CHEAP = 8
"""Instructions of a function built on the special-function unit: scale, MUFU, scale, and the arithmetic around."""
_BY_NAME = re.compile(r"(?<!\w)(?:sin|cos|tan|sincos|pow|exp|exp2|log|log2|tanh|erf|fmod)f?\s*\(")


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    if hot.count(*MATRIX):
        return None
    named = sorted({name.strip(" (") for name in _BY_NAME.findall(scene.profile.source)})
    trigonometric = any(
        name.removesuffix("f") in ("sin", "cos", "tan", "sincos") for name in named
    )  # compiled without the unit
    results = max(hot.bytes_moved("global_store"), hot.bytes_moved("global_load")) / 4
    functions = hot.count("special") or (results if trigonometric else 0.0)
    if functions <= 0:
        return None
    kinds = ("fma32", "alu", "half", "convert", "branch", "call", "slow_path")
    arithmetic, marks = hot.count(*kinds), hot.count("convert", "branch", "call", "slow_path")
    expanded = hot.count("fma32") >= 4 * functions and marks > functions
    gone: dict[str, float] = {"special": hot.count("special") / 2}
    if expanded:
        excess = max(0.0, 1 - _CHEAP * functions / arithmetic)
        gone |= {kind: excess * hot.count(kind) for kind in kinds}
    share = time_saved(scene, hot, gone)
    if share < _NOTICEABLE:
        return None
    each = arithmetic / functions
    evidence = [
        Evidence("special functions in the hot code", functions),
        Evidence("instructions for each of them", round(each, 1), _CHEAP),
    ]
    if (used := scene.metric_or_none(XU)) is not None:
        evidence.append(Evidence("use of the special-function pipe", used, 60, "%"))
    names = f" ({', '.join(named)})" if named else ""
    if expanded:
        cause = f"accurate versions of mathematical functions{names} expand to {each:.0f} instructions each, more than memory can hide"
        advice = (
            (
                "use the hardware's versions where the tolerance allows: __expf, "
                "__logf, __powf, __sinf, __fdividef, exp2f; in Triton tl.exp2"
            ),
            "rewrite: powers with small exponents as products and square roots, tanh and sigmoid through one exp2",
        )
    else:
        cause = f"{functions:.0f} special functions{names} pass through a pipe with an eighth of the rate of multiply-adds"
        advice = (
            "evaluate fewer: fold scales into exp2, divide once by multiplying with a reciprocal, reuse shared factors",
            "compute part of the exponentials by a polynomial on the multiply-add pipe",
        )
    return Match(
        tuple(evidence),
        cause,
        (*advice, "move what does not depend on the element out of the loop"),
        share,
        f"arithmetic sets the time; without the surplus instructions it would take {share:.0%} less",
        scene.code.get("where", {}).get("special", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="special_functions",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"special functions (or their accurate expansions, beyond {_CHEAP} instructions each) keep the SM busier than memory",
    remedy="hardware versions of the functions, fewer of them, or polynomials on the multiply-add pipe",
    gain_basis="busiest pipe with and without the surplus instructions, down to the time memory needs",
    metrics=(XU,),
    symptom_of=("double_precision", "spills", "divergence"),
)
