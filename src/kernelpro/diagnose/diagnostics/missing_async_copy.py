"""Missing asynchronous copies: tiles go through registers to shared memory, and every warp waits for them."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.tile_loops import METRICS, exposed_latency, tile_loop
from kernelpro.records import Evidence

_FIRST_CAPABILITY = 8.0
"""The first compute capability with cp.async; TMA came with 9.0."""


def _analyze(context: DiagnosticContext) -> Match | None:
    capability = float(context.device.capability or 9.0)
    loop = tile_loop(context, "global_load", "shared_store")
    if capability < _FIRST_CAPABILITY or loop is None or context.code.count("async_copy", "tma"):
        return None
    loads, stores = loop.count("global_load"), loop.count("shared_store")
    share, basis = exposed_latency(context, loop)
    if loop.count("barrier") < 2:
        # One barrier per step means two buffers: the next tile may already be in flight to registers.
        share, basis = share / 2, basis + "; two buffers are assumed to hide half of it"
    detour = (loads + stores) / loop.instructions
    if share < detour:
        share = detour
        basis = (
            f"other blocks hide the latency; {detour:.0%} of the loop's instructions move tiles through "
            "registers"
        )
    copy = "TMA (cp.async.bulk.tensor) or cp.async" if capability >= 9 else "cp.async"
    return Match(
        evidence=(
            Evidence("global loads to registers per step", loads, 0),
            Evidence("stores to shared memory per step", stores, 0),
            Evidence("asynchronous copies", 0, 1),
        ),
        cause="each step loads its tile into registers, stores it to shared memory and waits at a barrier "
        "before it computes",
        saved_share=share,
        basis=basis,
        where=loop.where,
        advice=(
            f"copy with {copy}: it needs no registers and no stores, and the warps continue computing",
            "use 2 to 4 buffers, so that a later tile arrives during the computation",
            "in Triton, num_stages of 2 or more does both",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="missing_async_copy",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger="a loop with global loads, stores to shared memory, a barrier and computation, in a kernel "
    "without cp.async or TMA (capability 8.0 and later)",
    remedy="cp.async or TMA into several buffers",
    gain_basis="stalls on tiles, limited by the headroom of the units; without counters, the latency of a "
    "tile against the work of a step",
    metrics=METRICS,
    claims=(
        "waiting_for_memory",
        "waiting_at_barriers",
        "waiting_for_shared_memory",
        "waiting_for_results",
        "cache_traffic",
        "shared_memory",
    ),
)
