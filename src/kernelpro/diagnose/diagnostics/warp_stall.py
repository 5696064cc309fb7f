"""Why warps wait, where no unit is full: the commonest reason, in words. Mostly a symptom of what other tools name."""

from __future__ import annotations

from kernelpro.diagnose.counters import (
    KERNEL_BOUNDS,
    hottest_line,
    latency_headroom,
    stall_metrics,
    stall_share,
)
from kernelpro.diagnose.diagnostic import ANY, Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.stall_reasons import REASONS
from kernelpro.records import Evidence

SHARE = 0.3
"""Of the warps' time, for a reason to be worth naming."""
LEAST = 0.04


def look(scene: DiagnosticContext) -> Match | None:
    shares = {name: stall_share(scene, name) for name in REASONS}
    name = max(shares, key=lambda key: shares[key])
    share, reason = shares[name], REASONS[name]
    saved = min(reason.avoidable * share, latency_headroom(scene))
    if share < SHARE or saved < LEAST:
        return None
    return Match(
        evidence=(
            Evidence(f"time that warps wait for {reason.words}", round(100 * share), 100 * SHARE, "%"),
            Evidence("left until a unit is full", round(100 * latency_headroom(scene)), None, "%"),
        ),
        cause=f"warps spend {share:.0%} of their time waiting for {reason.words}, while no unit of the device is full",
        advice=reason.advice,
        saved_share=saved,
        basis=f"{reason.avoidable:.0%} of this waiting can be hidden, until a unit is full",
        where=hottest_line(scene.kernel, name),
    )


DIAGNOSTIC = Diagnostic(
    name="warp_stall",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"one reason (barriers and fences have their own tools) is {SHARE:.0%} of the warps' time, and no unit is full",
    remedy="by reason: more loads in flight, wider accesses, independent chains, fewer instructions in the full queue",
    gain_basis="Little's law: the avoidable share of the waiting (30 to 60 %, by reason), until a unit is full",
    bounds=KERNEL_BOUNDS,
    metrics=stall_metrics(*REASONS),
    sample_lines=True,
    symptom_of=(ANY,),
)
