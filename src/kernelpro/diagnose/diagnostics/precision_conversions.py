"""Values converted to and fro: half to float to half at each step, float to integer and back."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import XU, hot_code, time_saved
from kernelpro.records import Evidence

_USUAL = 0.15
"""Share of conversions in the hot code of kernels that convert once at loading and once at storing: below 10 %."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    converts = hot.count("convert")
    if converts / hot.instructions < _USUAL or hot.count("fp64"):
        return None
    needed = min(converts, hot.bytes_moved("global_load", "global_store") / 4)
    surplus = converts - needed
    # The way back from a bfloat16 is a shift, which counts as integer arithmetic: one for each conversion, at most half of all.
    share = time_saved(scene, hot, {"convert": surplus, "alu": min(surplus, hot.count("alu") / 2)})
    if share < 0.05:
        return None
    evidence = [
        Evidence(
            "conversions among the hot instructions",
            round(100 * converts / hot.instructions, 1),
            100 * _USUAL,
            "%",
        )
    ]
    if (used := scene.metric_or_none(XU)) is not None:
        evidence.append(Evidence("use of the pipe that converts", used, 60, "%"))
    return Match(
        tuple(evidence),
        (
            f"{converts:.0f} of {hot.instructions:.0f} hot instructions "
            f"convert between types; loading and storing need about {needed:.0f}"
        ),
        (
            "convert once after loading, keep intermediate values in float32, convert once before storing",
            "convert pairs (__float22half2_rn, __half22float2, bfloat162) or compute in half2 throughout",
            "round with rintf or add-and-subtract instead of going through an integer",
        ),
        share,
        f"conversions run at an eighth to a half of the rate of multiply-adds; without the surplus the pipes need {share:.0%} less",
        scene.code.get("where", {}).get("convert", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="precision_conversions",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"at least {_USUAL:.0%} of the hot instructions convert between types, and the SM is busier than memory",
    remedy="convert once at each end, in pairs, and keep one type between",
    gain_basis="busiest pipe with and without the surplus conversions, down to the time memory needs",
    metrics=(XU,),
    symptom_of=("double_precision", "integer_arithmetic", "special_functions"),
)
