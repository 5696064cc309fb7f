"""Warp stalls where no unit is saturated: the most frequent reason. Mostly a symptom of other findings."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.counters import KERNEL_BOUNDS, stall_metrics
from kernelpro.diagnose.diagnostic import ANY, Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.stall_reasons import REASONS

MIN_SHARE = 0.3
"""Share of warp cycles from which a reason is reported."""
_MIN_SAVED = 0.04


def _analyze(context: DiagnosticContext) -> Match | None:
    shares = {name: context.stall_share(name) for name in REASONS}
    name = max(shares, key=lambda key: shares[key])
    share, reason, headroom = shares[name], REASONS[name], context.latency_headroom
    saved = min(reason.avoidable * share, headroom)
    if share < MIN_SHARE or saved < _MIN_SAVED:
        return None
    return Match(
        evidence=(
            percent(f"{name} stalls, of all warp cycles", share, MIN_SHARE),
            percent("headroom of the busiest unit", headroom),
        ),
        cause=f"{name} stalls take {share:.0%} of the warp cycles: warps wait for {reason.description}, "
        "while no unit is saturated",
        saved_share=saved,
        basis=f"{reason.avoidable:.0%} of these stalls can be hidden, until a unit saturates",
        where=context.hottest_line(name),
        advice=reason.advice,
    )


DIAGNOSTIC = Diagnostic(
    name="warp_stall",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"one stall reason (barriers and fences have their own diagnostics) takes {MIN_SHARE:.0%} of the "
    "warp cycles, and no unit is saturated",
    remedy="by reason: more loads in flight, wider accesses, independent chains, fewer instructions in the "
    "full queue",
    gain_basis="Little's law: the avoidable share of the stalls (30 to 60 %, by reason), until a unit "
    "saturates",
    bounds=KERNEL_BOUNDS,
    metrics=stall_metrics(*REASONS),
    sample_lines=True,
    symptom_of=(ANY,),
    claims=WAITING_PARTS,
)
