"""Surplus type conversions: half to float to half at each step, float to integer and back."""

from __future__ import annotations

from kernelpro.diagnose.counters import XU
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import hot_code, surplus_conversions, time_saved
from kernelpro.records import Evidence

USUAL = 0.15
"""Share of the hot code: kernels that convert once after loading and once before storing stay below 10 %."""
_MIN_SAVED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    converts = hot.count("convert")
    if hot.share("convert") < USUAL or hot.count("fp64"):
        return None
    surplus = surplus_conversions(hot)
    share = time_saved(context, hot, surplus)
    if share < _MIN_SAVED:
        return None
    evidence = [
        Evidence("conversions in the hot code", round(100 * hot.share("convert"), 1), 100 * USUAL, "%")
    ]
    if (utilization := context.metric_or_none(XU)) is not None:
        evidence.append(Evidence("XU pipe utilization", utilization, 60, "%"))
    return Match(
        evidence=tuple(evidence),
        cause=f"{converts:.0f} of {hot.instructions:.0f} instructions in the hot code convert between types; "
        f"loading and storing need about {converts - surplus['convert']:.0f}",
        saved_share=share,
        basis="conversions run at an eighth to a half of the FMA rate; without the surplus the pipes need "
        f"{share:.0%} less time",
        where=context.line_of("convert"),
    )


DIAGNOSTIC = Diagnostic(
    name="precision_conversions",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"at least {USUAL:.0%} of the hot instructions convert between types, and the SM is busier than "
    "memory",
    remedy="convert once at each end, in pairs, and keep one type between",
    gain_basis="time of the busiest pipe with and without the surplus conversions, at least that of the "
    "memory traffic",
    advice=(
        "convert once after loading, keep intermediates in float32, convert once before storing",
        "convert pairs (__float22half2_rn, __half22float2, bfloat162) or compute in half2 throughout",
        "round with rintf or add-and-subtract instead of converting to integer and back",
    ),
    metrics=(XU,),
    claims=(
        "conversions",
        "integer_instructions",
    ),
)
