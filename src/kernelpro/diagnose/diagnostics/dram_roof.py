"""The kernel moves bytes as fast as DRAM can: nothing but fewer bytes will make it faster."""

from __future__ import annotations

from kernelpro.diagnose.counters import DRAM_THROUGHPUT, DURATION, KERNEL_BOUNDS, has_counters
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, dram_bandwidth, required_bytes
from kernelpro.records import Evidence

NEAR = 0.85
"""Of the bandwidth of a large copy on the same device."""
ALONE = 0.95
"""Share of a call that a kernel must have, for the task's bytes to be its bytes."""


def look(scene: DiagnosticContext) -> Match | None:
    kernel = scene.kernel
    if has_counters(scene):
        moved, seconds = scene.metric(DRAM_READ) + scene.metric(DRAM_WRITTEN), 1e-9 * scene.metric(DURATION)
        source = ""
    elif kernel.share >= ALONE:
        moved, seconds = required_bytes(scene), 1e-6 * kernel.microseconds
        source = " (computed from the task's fewest bytes; counters were not available)"
    else:
        return None
    ceiling = dram_bandwidth(scene)
    reached = moved / seconds / ceiling if seconds > 0 else 0.0
    if reached < NEAR:
        return None
    return Match(
        evidence=(
            Evidence("bandwidth reached", round(moved / seconds / 1e12, 2), round(ceiling / 1e12, 2), "TB/s"),
        ),
        cause=f"the kernel runs at {reached:.0%} of the bandwidth of a large copy on this device{source}: tuning its instructions "
        "will not help any more",
        advice=(
            "move fewer bytes: fuse with the neighbours in the model, use a smaller type where the task allows it",
            "leave this kernel alone: what is left is small",
        ),
        saved_share=max(0.0, 1 - reached),
        basis=f"{1 - min(1.0, reached):.0%} is left to the bandwidth of a copy",
    )


DIAGNOSTIC = Diagnostic(
    name="dram_roof",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"the kernel reaches {NEAR:.0%} of the bandwidth that a large copy has on the device",
    remedy="fewer bytes: fusion, smaller types; else stop here",
    gain_basis="only what is left to the copy's bandwidth",
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN),
    symptom_of=("excess_traffic", "uncoalesced_access", "sector_waste", "l2_thrash", "spills"),
)
