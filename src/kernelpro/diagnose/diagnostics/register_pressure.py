"""A thread needs so many registers that an SM holds too few warps to hide latency."""

from __future__ import annotations

from kernelpro.diagnose.counters import ISSUE_ACTIVE, has_counters
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.occupancy import LOW, kernel_occupancy, latency_hiding_gain, registers_per_thread
from kernelpro.records import Evidence


def look(scene: DiagnosticContext) -> Match | None:
    holds = kernel_occupancy(scene)
    if holds.limiter != "registers":
        return None
    hidden = latency_hiding_gain(scene, holds)
    if hidden is None:
        return None
    saved, how = hidden
    registers = registers_per_thread(scene.kernel)
    spilled = scene.kernel.code.get("spill_stores", 0) + scene.kernel.code.get("spill_loads", 0)
    unproven = "" if has_counters(scene) else " (computed from the launch; counters were not available)"
    return Match(
        evidence=(
            Evidence("registers a thread", registers),
            Evidence("warps that fit an SM, of those possible", round(100 * holds.share), 100 * LOW, "%"),
            *((Evidence("bytes spilled", spilled, 0, "B"),) if spilled else ()),
        ),
        cause=f"{registers} registers a thread let an SM hold {holds.blocks} block{'s' if holds.blocks > 1 else ''} of "
        f"{holds.warps_in_block} warps, {holds.share:.0%} of its warps: too few to hide latency{unproven}",
        advice=(
            "keep less alive in a thread: a smaller tile of results, less unrolling, values recomputed instead of kept",
            "split the kernel's independent parts, or spread one thread's work over more threads",
            "__launch_bounds__(threads, blocks) or maxrregcount, as long as the compiler then spills nothing",
        ),
        saved_share=saved,
        basis=how,
    )


DIAGNOSTIC = Diagnostic(
    name="register_pressure",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"registers keep the possible occupancy below {LOW:.0%}, no unit is used more than 65 %, and the kernel is not one on "
    "tensor cores; without counters: where it is also 1.5x above the floor",
    remedy="fewer values alive in a thread; launch bounds",
    gain_basis="Little's law: the rate grows with the warps, up to half of an SM's, until a unit is full; 15 % without counters",
    metrics=(ISSUE_ACTIVE,),
    symptom_of=("low_parallelism",),
)
