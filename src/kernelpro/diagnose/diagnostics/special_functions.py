"""Expensive special functions: accurate versions that expand to many instructions, or a saturated XU pipe."""

from __future__ import annotations

import re

from kernelpro.diagnose.counters import XU
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.hot_code import MATRIX
from kernelpro.diagnose.pipes import hot_code, time_saved
from kernelpro.records import Evidence, InstructionKind

_MIN_SAVED = 0.05
"""Smaller gains cannot be distinguished from noise."""
CHEAP = 8
"""Instructions of a function that uses the special-function unit: scale, MUFU, scale, some arithmetic."""
_NAMES = re.compile(r"(?<!\w)(?:sin|cos|tan|sincos|pow|exp|exp2|log|log2|tanh|erf|fmod)f?\s*\(")
_EXPANSION: tuple[InstructionKind, ...] = ("convert", "branch", "call", "slow_path")
_HOIST = "hoist what does not depend on the element out of the loop"


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    if hot.count(*MATRIX):
        return None
    names = sorted({name.strip(" (") for name in _NAMES.findall(context.profile.source)})
    # sin, cos and tan compile to code without the special-function unit.
    trigonometric = any(name.removesuffix("f") in ("sin", "cos", "tan", "sincos") for name in names)
    results = max(hot.bytes_moved("global_store"), hot.bytes_moved("global_load")) / 4
    functions = hot.count("special") or (results if trigonometric else 0.0)
    if functions <= 0:
        return None
    kinds: tuple[InstructionKind, ...] = ("fma32", "alu", "half", *_EXPANSION)
    arithmetic = hot.count(*kinds)
    expanded = hot.count("fma32") >= 4 * functions and hot.count(*_EXPANSION) > functions
    removed: dict[InstructionKind, float] = {"special": hot.count("special") / 2}
    if expanded:
        excess = max(0.0, 1 - CHEAP * functions / arithmetic)
        removed |= {kind: excess * hot.count(kind) for kind in kinds}
    share = time_saved(context, hot, removed)
    if share < _MIN_SAVED:
        return None
    length = arithmetic / functions
    evidence = [
        Evidence("special functions in the hot code", functions),
        Evidence("instructions per special function", round(length, 1), CHEAP),
    ]
    if (utilization := context.metric_or_none(XU)) is not None:
        evidence.append(Evidence("XU pipe utilization", utilization, 60, "%"))
    listed = f" ({', '.join(names)})" if names else ""
    if expanded:
        cause = (
            f"accurate math functions{listed} expand to {length:.0f} instructions each, more than memory "
            "can hide"
        )
        advice = (
            "use fast intrinsics where the tolerance allows: __expf, __logf, __powf, __sinf, __fdividef, "
            "exp2f; in Triton tl.exp2",
            "rewrite: small powers as products and square roots, tanh and sigmoid with one exp2",
        )
    else:
        cause = (
            f"{functions:.0f} special functions{listed} go through the XU pipe, at an eighth of the FMA rate"
        )
        advice = (
            "evaluate fewer: fold scales into exp2, multiply by one reciprocal, reuse common factors",
            "compute part of the exponentials by a polynomial on the FMA pipe",
        )
    return Match(
        evidence=tuple(evidence),
        cause=cause,
        saved_share=share,
        basis=f"arithmetic determines the time; without the surplus instructions it would take {share:.0%} "
        "less",
        where=context.line_of("special"),
        advice=(*advice, _HOIST),
    )


DIAGNOSTIC = Diagnostic(
    name="special_functions",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"special functions (or their accurate expansions, beyond {CHEAP} instructions each) keep the SM "
    "busier than memory",
    remedy="fast intrinsics, fewer special functions, or polynomials on the FMA pipe",
    gain_basis="time of the busiest pipe with and without the surplus instructions, at least that of the "
    "memory traffic",
    metrics=(XU,),
    symptom_of=("double_precision",),
    claims=(
        "special_functions",
        "conversions",
        "arithmetic",
        "integer_instructions",
        "waiting_for_shared_memory",
        "waiting_for_pipes",
    ),
)
