"""Memory fences in the loop: a warp stalls until all its writes are visible to the device."""

from __future__ import annotations

from kernelpro.diagnose.counters import WARP_CYCLES, stall_metric, stall_metrics
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

_FENCE_CLOCKS, _PASS_CLOCKS = 700, 900
"""Latency under load of a device-wide fence after a write (a round trip to L2), and of an iteration with a
DRAM load."""
_PER_FENCE = 3
"""Instructions of one __threadfence on sm_80 and later: MEMBAR, ERRBAR and an invalidation of L1."""
MIN_STALLED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    fences = -(-hot.count("membar") // _PER_FENCE)
    # Tensor-core and TMA loops need proxy fences, which are cheap; a fence outside loops runs once per block.
    if not fences or not hot.is_loop or hot.count("hgmma", "tma", "async_copy"):
        return None
    evidence = [Evidence("fences per iteration", fences, 0)]
    share = fences * _FENCE_CLOCKS / (fences * _FENCE_CLOCKS + _PASS_CLOCKS)
    basis = (
        f"a fence costs a round trip to L2 (about {_FENCE_CLOCKS} cycles), an iteration without it about "
        f"{_PASS_CLOCKS}"
    )
    if None not in map(context.metric_or_none, (stall_metric("membar"), WARP_CYCLES)):
        stalled, headroom = context.stall_share("membar"), context.latency_headroom
        if stalled < MIN_STALLED:
            return None
        evidence.append(
            Evidence("warp cycles stalled in fences", round(100 * stalled, 1), 100 * MIN_STALLED, "%")
        )
        share = min(stalled, headroom)
        basis = (
            f"warps stall {stalled:.0%} of their cycles in fences; the busiest unit has {headroom:.0%} "
            "headroom"
        )
    return Match(
        evidence=tuple(evidence),
        cause=f"each iteration executes {fences:.0f} memory fence{'s' if fences > 1 else ''}: a warp stalls "
        "until its writes have reached L2, and L1 is invalidated",
        saved_share=share,
        basis=basis,
        where=context.line_of("membar"),
    )


DIAGNOSTIC = Diagnostic(
    name="memory_barriers",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"a device-wide fence inside the hot loop (with counters: warps stall {MIN_STALLED:.0%} of their "
    "cycles or more in fences)",
    remedy="one fence after the loop, or a narrower scope",
    gain_basis="warp cycles stalled in fences, limited by the headroom of the units; without counters, the "
    "latency of the fence against that of an iteration",
    advice=(
        "publish once: write everything, then one fence and one flag after the loop",
        "use __syncthreads or __threadfence_block inside a block, __syncwarp inside a warp",
        "use release and acquire on the flag itself (cuda::atomic_ref, ld.acquire, st.release) instead of a "
        "full fence",
    ),
    metrics=stall_metrics("membar"),
    claims=(
        "waiting_at_fences",
        "synchronization",
        "waiting_for_memory",
    ),
)
