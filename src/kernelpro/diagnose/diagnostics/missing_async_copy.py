"""Tiles that go through registers on their way to shared memory, with every warp waiting for them."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.tile_loops import METRICS, exposed_latency, tile_loop
from kernelpro.records import Evidence

_FIRST = 8.0
"""First capability with asynchronous copies (cp.async); TMA came with 9.0."""


def look(scene: DiagnosticContext) -> Match | None:
    capability = float(scene.device.get("capability", 9.0))
    loop = tile_loop(scene, "global_load", "shared_store")
    if capability < _FIRST or loop is None or scene.count_instructions("async_copy", "tma", hot=False):
        return None
    mix = loop["mix"]
    share, how = exposed_latency(scene, loop)
    if mix["barrier"] < 2:
        # One barrier a step means two buffers: the next tile may be on its way in registers already.
        share, how = share / 2, how + "; two buffers seem to hide half of it"
    detour = (mix["global_load"] + mix["shared_store"]) / loop["instructions"]
    if share < detour:
        share, how = (
            detour,
            f"other blocks hide the latency; {detour:.0%} of the loop's instructions carry tiles through registers",
        )
    copier = "TMA (cp.async.bulk.tensor) or cp.async" if capability >= 9 else "cp.async"
    return Match(
        (
            Evidence("loads to registers in a step", mix["global_load"], 0),
            Evidence("stores to shared memory in a step", mix["shared_store"], 0),
            Evidence("asynchronous copies", 0, 1),
        ),
        "each step loads its tile into registers, stores it to shared memory and meets at a barrier before it computes",
        (
            f"copy with {copier}: no registers, no stores, and the warps go on computing",
            "use 2 to 4 buffers so that a later tile is on its way during the computation",
            "in Triton num_stages of 2 or more does both",
        ),
        share,
        how,
        str(loop.get("where", "")),
    )


DIAGNOSTIC = Diagnostic(
    name="missing_async_copy",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=(
        "a loop with global loads, stores to shared memory, a barrier and "
        "computation, in a kernel without cp.async or TMA (capability 8.0 and later)"
    ),
    remedy="cp.async or TMA into several buffers",
    gain_basis=(
        "time spent waiting for tiles as far as the units have room; without counters, latency of a tile against the work of a step"
    ),
    metrics=METRICS,
    symptom_of=(
        "missing_pipelining",
        "uncoalesced_access",
        "bank_conflicts",
        "tensor_cores_idle",
        "missing_reuse",
        "low_parallelism",
        "spills",
    ),
)
