"""DRAM roof: the kernel saturates the DRAM bandwidth, and only fewer bytes make it faster."""

from __future__ import annotations

from kernelpro.diagnose.account import TRAFFIC_PARTS
from kernelpro.diagnose.counters import DRAM_READ, DRAM_THROUGHPUT, DRAM_WRITTEN, DURATION, KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.traffic import dram_bandwidth, required_bytes
from kernelpro.records import Evidence

SATURATED = 0.85
"""Share of the bandwidth that a large copy reaches on the same device."""
DOMINANT = 0.95
"""Share of a call from which the task's bytes can be attributed to one kernel."""


def _analyze(context: DiagnosticContext) -> Match | None:
    kernel = context.kernel
    if context.has_counters:
        moved, seconds = (
            context.metric(DRAM_READ) + context.metric(DRAM_WRITTEN),
            1e-9 * context.metric(DURATION),
        )
        caveat = ""
    elif kernel.share >= DOMINANT:
        moved, seconds = required_bytes(context), 1e-6 * kernel.microseconds
        caveat = " (from the task's minimum bytes; no counters)"
    else:
        return None
    peak = dram_bandwidth(context)
    achieved = moved / seconds / peak if seconds > 0 else 0.0
    if achieved < SATURATED:
        return None
    return Match(
        evidence=(
            Evidence("DRAM bandwidth", round(moved / seconds / 1e12, 2), round(peak / 1e12, 2), "TB/s"),
        ),
        cause=f"the kernel runs at {achieved:.0%} of the bandwidth of a large copy on this device{caveat}: "
        "tuning instructions no longer helps, only moving fewer bytes does",
        saved_share=max(0.0, 1 - achieved),
        basis=f"{1 - min(1.0, achieved):.0%} of the bandwidth of a large copy is left",
    )


DIAGNOSTIC = Diagnostic(
    name="dram_roof",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"the kernel reaches {SATURATED:.0%} of the bandwidth that a large copy has on the device",
    remedy="fewer bytes: fusion, smaller types; else stop here",
    gain_basis="the share of a large copy's bandwidth that is left",
    advice=(
        "move fewer bytes: fuse with neighboring operators, use a smaller type where the task allows",
        "leave this kernel as it is: little is left to gain",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN),
    symptom_of=("memory_barriers",),
    claims=("idle_sms", *TRAFFIC_PARTS),
)
