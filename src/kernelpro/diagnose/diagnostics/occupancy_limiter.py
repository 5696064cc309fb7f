"""Shared memory or the block size lets an SM hold too few warps to hide latency."""

from __future__ import annotations

from kernelpro.diagnose.counters import ISSUE_ACTIVE, has_counters
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.occupancy import LOW, kernel_occupancy, latency_hiding_gain
from kernelpro.records import Evidence

ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ADVICE = {
    "shared memory": (
        "use less shared memory a block: smaller tiles, fewer stages, a smaller type, or registers for what one thread uses",
        "reuse one buffer for what is not alive at the same time",
        "more threads on the same tile also give more warps for the same memory",
    ),
    "warps": (
        "choose a block size that divides the device's threads an SM: 128 or 256 threads leave no rest, 768 or 1024 often do",
        "let several smaller blocks share the work of a large one",
    ),
    "blocks": (
        "use larger blocks: with one or two warps each, the number of blocks an SM can hold is used up first",
        "128 to 256 threads a block are a good start",
    ),
}


def look(scene: DiagnosticContext) -> Match | None:
    holds = kernel_occupancy(scene)
    if holds.limiter not in _ADVICE:
        return None
    hidden = latency_hiding_gain(scene, holds)
    if hidden is None:
        return None
    saved, how = hidden
    shared = scene.kernel.static_shared + scene.kernel.dynamic_shared
    achieved = scene.metric_or_none(ACHIEVED)
    threads = 32 * holds.warps_in_block
    reason = {
        "shared memory": f"{shared / 1024:.0f} KiB of shared memory a block",
        "warps": f"blocks of {threads} threads",
        "blocks": f"blocks of only {threads} threads",
    }[holds.limiter]
    unproven = "" if has_counters(scene) else " (computed from the launch; counters were not available)"
    return Match(
        evidence=(
            Evidence("warps that fit an SM, of those possible", round(100 * holds.share), 100 * LOW, "%"),
            Evidence("blocks an SM holds", holds.blocks),
            *((Evidence("warps really active", round(achieved), None, "%"),) if achieved is not None else ()),
        ),
        cause=f"{reason} let an SM hold {holds.blocks} block{'s' if holds.blocks > 1 else ''}, {holds.share:.0%} of its warps: "
        f"too few to hide latency{unproven}",
        advice=_ADVICE[holds.limiter],
        saved_share=saved,
        basis=how,
    )


DIAGNOSTIC = Diagnostic(
    name="occupancy_limiter",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"shared memory or the block size keeps the possible occupancy below {LOW:.0%}, no unit is used more than 65 %, and "
    "the kernel is not one on tensor cores; without counters: where it is also 1.5x above the floor",
    remedy="less shared memory a block, or another block size",
    gain_basis="Little's law: the rate grows with the warps, up to half of an SM's, until a unit is full; 15 % without counters",
    metrics=(ISSUE_ACTIVE,),
    symptom_of=("low_parallelism",),
)
