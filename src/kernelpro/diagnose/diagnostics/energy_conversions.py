"""Surplus type conversions: instructions that compute nothing cost energy."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_saved
from kernelpro.diagnose.pipes import hot_code, surplus_conversions
from kernelpro.records import Evidence

USUAL = 0.05
"""Share of the hot code in kernels that convert once after loading and once before storing."""
MIN_SAVED = 0.03


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    if hot.share("convert") < USUAL or hot.count("fp64"):
        return None
    surplus = surplus_conversions(hot)
    share = energy_saved(context, hot, surplus)
    if share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            Evidence("conversions in the hot code", round(100 * hot.share("convert"), 1), 100 * USUAL, "%"),
            Evidence(
                "conversions that loads and stores need", round(hot.count("convert") - surplus["convert"])
            ),
        ),
        cause=f"{surplus['convert']:.0f} of {hot.instructions:.0f} instructions in the hot code are "
        "conversions that loads and stores do not need",
        saved_share=share,
        basis="the energy of the surplus conversions and of the shifts that convert from bfloat16",
        where=context.line_of("convert"),
    )


DIAGNOSTIC = Diagnostic(
    name="energy_conversions",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"at least {USUAL:.0%} of the hot instructions convert between types, and the surplus takes "
    f"{MIN_SAVED:.0%} of the kernel's energy",
    remedy="convert once at each end, in pairs; narrow arithmetic",
    gain_basis="the energy of the surplus conversions",
    advice=(
        "convert once after loading and once before storing, in pairs (__half22float2, __float22half2_rn, "
        "bfloat162)",
        "compute in the narrow type where the tolerance allows: half2 and bfloat162 also halve the "
        "instructions",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    symptom_of=("energy_costly_math",),
    objective="energy",
)
