"""More bytes through DRAM than the task needs: several passes over the input, intermediates written and read back."""

from __future__ import annotations

from kernelpro.diagnose.counters import DRAM_THROUGHPUT, KERNEL_BOUNDS, has_counters
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import GUESS, SUSPECT, unexplained_slowdown
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, excess_traffic
from kernelpro.records import Evidence

FACTOR = 1.3
"""Of the fewest bytes: halos, statistics and partial lines of good kernels stay below."""
BOUND = 0.5
"""DRAM must set at least half of the time, else fewer bytes change little."""
SWEEPS = 3
"""Loops that load, from which several passes are likely: one pass has two, the unrolled loop and its rest."""
CONTRIBUTES = 0.2
"""Part of a call's traffic from which a kernel is spoken of."""


def look(scene: DiagnosticContext) -> Match | None:
    if not has_counters(scene) and (found := _suspected(scene)):
        return found
    over = excess_traffic(scene)
    if over.factor < FACTOR or over.bound < BOUND or over.own < CONTRIBUTES:
        return None
    read, needed = (
        scene.metric(DRAM_READ) * max(1.0, scene.kernel.launches),
        scene.profile.work.get("read_bytes", 0.0),
    )
    several = len(scene.profile.kernels) > 1
    again = (
        f"{'this kernel alone' if several else 'it'} reads {read / needed:.1f} times what the task's inputs hold"
        if needed and read > FACTOR * needed
        else ""
    )
    who = (
        f"the kernels of a call move {over.factor:.1f} times"
        if several
        else f"the kernel moves {over.factor:.1f} times"
    )
    return _found(
        (
            Evidence("bytes through DRAM in a call", over.moved, over.fewest, "B"),
            Evidence(
                "bytes this kernel moves, share of the call's", round(100 * over.own), 100 * CONTRIBUTES, "%"
            ),
            Evidence("use of DRAM", round(scene.metric(DRAM_THROUGHPUT)), None, "%"),
        ),
        f"{who} the bytes that the task needs ({over.moved / 1e6:.0f} MB for {over.fewest / 1e6:.0f} MB)"
        + (f"; {again}" if again else "; intermediates are written and read back"),
        over.saved,
        f"{1 - 1 / over.factor:.0%} of the bytes are needless, and DRAM sets {over.bound:.0%} of the time",
    )


def _suspected(scene: DiagnosticContext) -> Match | None:
    """Several loops that load, in a kernel that takes longer than its bytes need for no reason that its code shows."""
    factor = unexplained_slowdown(scene)
    loops = [
        loop
        for loop in scene.code.get("loops", ())
        if loop.get("innermost") and loop["mix"].get("global_load", 0)
    ]
    if factor < SUSPECT or len(loops) < SWEEPS:
        return None
    return _found(
        (
            Evidence("times what the task's bytes need", round(factor, 1), SUSPECT, "x"),
            Evidence("loops that load from global memory", len(loops), SWEEPS),
        ),
        f"{len(loops)} loops load from global memory, and the kernel takes {factor:.1f} times what the task's bytes need: it may "
        "read them several times (computed; counters were not available)",
        GUESS,
        f"a guess without counters: {factor:.1f} times what the bytes need",
    )


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "read each input once: keep a row or a tile in registers or shared memory between the passes over it",
            "compute statistics in one pass (online maximum and sum, Welford or shifted sums)",
            "fuse the kernels that hand intermediates on, so that these never leave the SM",
        ),
        saved_share=saved,
        basis=how,
    )


DIAGNOSTIC = Diagnostic(
    name="excess_traffic",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"the kernels of a call move {FACTOR} times the fewest bytes of the task through DRAM, and DRAM sets at least half of "
    f"this kernel's time; spoken of for kernels with {CONTRIBUTES:.0%} of the traffic or more; without counters, a suspicion: "
    f"{SWEEPS} loops that load, and {SUSPECT:g} times what the bytes need, unexplained",
    remedy="one pass over the input; statistics online; fusion",
    gain_basis="the share of needless bytes, times how far DRAM sets the time",
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN),
    symptom_of=(
        "uncoalesced_access",
        "sector_waste",
        "l2_thrash",
        "spills",
        "needless_copies",
        "unfused_chain",
    ),
)
