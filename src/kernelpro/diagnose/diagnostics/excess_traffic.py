"""Excess DRAM traffic: several passes over the input, or intermediates that are written and read back."""

from __future__ import annotations

from kernelpro.diagnose.account import TRAFFIC_PARTS
from kernelpro.diagnose.counters import DRAM_READ, DRAM_THROUGHPUT, DRAM_WRITTEN, KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.memory_latency import SUSPICIOUS, UNPROVEN_GAIN, unexplained_slowdown
from kernelpro.diagnose.traffic import excess_traffic
from kernelpro.records import Evidence

FACTOR = 1.3
"""Moved over minimum bytes: halos, statistics and partial cache lines of good kernels stay below."""
DRAM_SHARE = 0.5
"""DRAM must take at least half of the time, else fewer bytes change little."""
PASSES = 3
"""Loops with loads from which several passes are likely: one pass has two, the unrolled loop and its
remainder."""
MIN_KERNEL_SHARE = 0.2
"""Share of the call's traffic."""


def _analyze(context: DiagnosticContext) -> Match | None:
    if not context.has_counters and (suspicion := _suspect(context)):
        return suspicion
    traffic = excess_traffic(context)
    if traffic.factor < FACTOR or traffic.dram_share < DRAM_SHARE or traffic.kernel_share < MIN_KERNEL_SHARE:
        return None
    read, inputs = context.metric(DRAM_READ) * context.launches, context.work.read_bytes
    several = len(context.profile.kernels) > 1
    reason = "intermediates are written and read back"
    if inputs and read > FACTOR * inputs:
        reason = (
            f"{'this kernel alone' if several else 'it'} reads {read / inputs:.1f}x the bytes of the inputs"
        )
    return Match(
        evidence=(
            Evidence("DRAM traffic of a call", traffic.moved, traffic.required, "B"),
            percent("this kernel's share of the traffic", traffic.kernel_share, MIN_KERNEL_SHARE),
            Evidence("DRAM throughput", round(context.metric(DRAM_THROUGHPUT)), None, "%"),
        ),
        cause=f"the {'kernels of a call move' if several else 'kernel moves'} {traffic.factor:.1f}x the "
        f"bytes that the task needs ({traffic.moved / 1e6:.0f} MB for {traffic.required / 1e6:.0f} MB); "
        f"{reason}",
        saved_share=traffic.saved_share,
        basis=f"{1 - 1 / traffic.factor:.0%} of the bytes are unnecessary, and DRAM takes "
        f"{traffic.dram_share:.0%} of the time",
    )


def _suspect(context: DiagnosticContext) -> Match | None:
    """Several loops with loads, in a kernel whose code does not explain its time."""
    slowdown = unexplained_slowdown(context)
    loops = sum(loop.count("global_load") > 0 for loop in context.code.innermost_loops)
    if slowdown.factor < SUSPICIOUS or loops < PASSES:
        return None
    return Match(
        evidence=(slowdown.evidence, Evidence("loops that load from global memory", loops, PASSES)),
        cause=f"{loops} loops load from global memory, and the kernel takes {slowdown.factor:.1f}x the "
        "minimum DRAM time of the task's bytes: it may read them several times (no counters)",
        saved_share=UNPROVEN_GAIN,
        basis=slowdown.basis,
    )


DIAGNOSTIC = Diagnostic(
    name="excess_traffic",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"the kernels of a call move {FACTOR}x the task's minimum bytes through DRAM, and DRAM takes "
    f"at least half of this kernel's time; for kernels with {MIN_KERNEL_SHARE:.0%} of the traffic or more; "
    f"without counters, a heuristic: {PASSES} loops with loads, and {SUSPICIOUS:g}x the minimum DRAM time, "
    "unexplained",
    remedy="one pass over the input; online statistics; fusion",
    gain_basis="the share of unnecessary bytes, times the share of the time that DRAM takes",
    advice=(
        "read each input once: keep a row or a tile in registers or shared memory between the passes",
        "compute statistics in one pass (online maximum and sum, Welford or shifted sums)",
        "fuse the kernels that exchange intermediates, so that those never leave the SM",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN),
    symptom_of=("sector_waste", "l2_thrash"),
    claims=TRAFFIC_PARTS,
)
