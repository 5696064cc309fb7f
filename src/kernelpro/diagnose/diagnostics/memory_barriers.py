"""Fences in the loop: each makes a warp wait until all its writes are visible to the whole device."""

from __future__ import annotations

from kernelpro.diagnose.counters import (
    WARP_CYCLES,
    latency_headroom,
    stall_metric,
    stall_metrics,
    stall_share,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

_FENCE_CLOCKS, _PASS_CLOCKS = 700, 900
"""Latencies of a device-wide fence after a write (a round trip to L2), and of a pass with a load from DRAM, under load."""
_IN_FENCE = 3
"""Instructions of one __threadfence on sm_80 and later: MEMBAR, ERRBAR and an invalidation of L1."""
_ENOUGH = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    fences = -(-hot.count("membar") // _IN_FENCE)
    # Tensor-core and TMA loops need fences between proxies, which are cheap; a fence outside loops runs once a block.
    if not fences or not hot.is_loop or hot.count("hgmma", "tma", "async_copy"):
        return None
    evidence = [Evidence("fences in a pass of the loop", fences, 0)]
    share = fences * _FENCE_CLOCKS / (fences * _FENCE_CLOCKS + _PASS_CLOCKS)
    how = f"a fence costs a round trip to L2 (about {_FENCE_CLOCKS} clocks), a pass of the loop about {_PASS_CLOCKS} without it"
    if scene.metric_or_none(stall_metric("membar")) is not None and scene.metric_or_none(WARP_CYCLES) is not None:
        waiting = stall_share(scene, "membar")
        if waiting < _ENOUGH:
            return None
        evidence.append(Evidence("warps' time spent in fences", round(100 * waiting, 1), 100 * _ENOUGH, "%"))
        share = min(waiting, latency_headroom(scene))
        how = f"warps spend {waiting:.0%} of their time in fences; the busiest unit leaves room for {latency_headroom(scene):.0%}"
    return Match(
        tuple(evidence),
        (
            f"each pass of the loop executes {fences:.0f} memory fence{'s' if fences > 1 else ''}: a "
            "warp stops until its writes have reached L2, and L1 is invalidated"
        ),
        (
            "publish once: write everything, then one fence and one flag after the loop",
            "inside a block use __syncthreads or __threadfence_block; between threads of a warp __syncwarp",
            "use release and acquire on the flag itself (cuda::atomic_ref, ld.acquire, st.release) instead of a full fence",
        ),
        share,
        how,
        scene.code.get("where", {}).get("membar", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="memory_barriers",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"a device-wide fence inside the hot loop (with counters: {_ENOUGH:.0%} of the warps' time or more is spent there)",
    remedy="one fence after the loop, or a narrower scope",
    gain_basis=(
        "share of the warps' time in fences, as far as the units have "
        "room; without counters, latency of the fence against that of a pass"
    ),
    metrics=stall_metrics("membar"),
)
