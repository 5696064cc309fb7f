"""Values converted to and fro between types: instructions that compute nothing."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_saved
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

_USUAL = 0.05
"""Share of conversions in the hot code of kernels that convert once at loading and once at storing."""
_NOTICEABLE = 0.03


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    converts = hot.count("convert")
    if converts / hot.instructions < _USUAL or hot.count("fp64"):
        return None
    needed = min(converts, hot.bytes_moved("global_load", "global_store") / 4)
    surplus = converts - needed
    share = energy_saved(scene, hot, {"convert": surplus, "alu": min(surplus, hot.count("alu") / 2)})
    if share < _NOTICEABLE:
        return None
    return Match(
        evidence=(
            Evidence(
                "conversions among the hot instructions",
                round(100 * converts / hot.instructions, 1),
                100 * _USUAL,
                "%",
            ),
            Evidence("of which loading and storing need", round(needed), None),
        ),
        cause=f"{surplus:.0f} of {hot.instructions:.0f} hot instructions convert values that are converted back",
        advice=(
            "convert once after loading and once before storing, in pairs (__half22float2, __float22half2_rn, bfloat162)",
            "stay in the narrow type where the tolerance allows: half2 and bfloat162 arithmetic halve the instructions as well",
        ),
        saved_share=share,
        basis="the energy of the surplus conversions and of the shifts that go with them",
        where=scene.code.get("where", {}).get("convert", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="energy_conversions",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"at least {_USUAL:.0%} of the hot instructions convert between types, and the surplus takes {_NOTICEABLE:.0%} of the "
    "kernel's energy",
    remedy="convert once at each end, in pairs; narrow arithmetic",
    gain_basis="the energy of the surplus conversions",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    symptom_of=("energy_costly_math",),
    objective="energy",
)
