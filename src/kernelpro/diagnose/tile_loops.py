"""Loops over tiles in shared memory, and how much of a tile's latency shows."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from kernelpro.diagnose import occupancy
from kernelpro.diagnose.counters import has_counters, latency_headroom, stall_metrics, stall_share
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.diagnose.pipes import MATRIX, HotCode

REASONS = ("long_scoreboard", "barrier")
METRICS = stall_metrics(*REASONS)
_LATENCY_CLOCKS = 800
"""From asking for a tile to having it in shared memory: DRAM's latency under moderate load, and a barrier."""
_WAITING = 0.3
"""Share of the warps' time spent waiting for memory and barriers from which on overlap is missing."""
_COMPUTE = ("fma32", "half", *MATRIX)


def tile_loop(scene: DiagnosticContext, *brings: str) -> dict[str, Any] | None:
    """The smallest loop that brings tiles to shared memory by such instructions, meets at a barrier and computes on them."""
    fits = [
        loop
        for loop in scene.code.get("loops", ())
        if _computes_on_tiles(loop) and all(map(loop["mix"].get, brings))
    ]
    return min(fits, key=lambda loop: int(loop["instructions"]), default=None)


def _computes_on_tiles(loop: dict[str, Any]) -> bool:
    mix, moved = loop["mix"], HotCode(loop["mix"], loop.get("widths", {}), True).bytes_moved
    stored, loaded = moved("shared_store"), moved("global_load")
    if not mix.get("async_copy") and not loaded / 2 <= stored <= 2 * loaded:
        return False  # what is stored is not what was loaded: a reduction, say
    from_shared = mix.get("shared_load") or mix.get("hgmma")  # wgmma reads its operands there itself
    return bool(mix.get("barrier") and from_shared and any(map(mix.get, _COMPUTE)))


def exposed_latency(scene: DiagnosticContext, loop: dict[str, Any]) -> tuple[float, str]:
    """Share of the time in which a tile's latency shows, and how that was derived.

    Measured: time of the warps waiting for memory and at barriers, as far as the units have room. Else a model of one
    step: blocks on an SM hide each other's latency, so that b blocks of work w with latency L take max(b w, L + w).
    """
    if has_counters(scene) and all(scene.metric_or_none(name) is not None for name in METRICS):
        waiting = stall_share(scene, *REASONS)
        how = f"warps wait {waiting:.0%} of their time for tiles and barriers, and the busiest unit has room for {latency_headroom(scene):.0%}"
        return min(waiting, latency_headroom(scene)) if waiting >= _WAITING else 0.0, how
    blocks, threads = 1, math.prod(scene.kernel.block) if scene.kernel.block else 256
    with contextlib.suppress(MissingData):  # one block then: what large tiles leave room for
        blocks = occupancy.kernel_occupancy(scene).blocks
    work = threads * HotCode(loop["mix"], loop.get("widths", {}), True).clocks()
    plural = "s" if blocks > 1 else ""
    how = f"a step waits about {_LATENCY_CLOCKS} clocks for its tile and computes {work:.0f}, with {blocks} block{plural} on an SM"
    return 1 - blocks * work / max(blocks * work, _LATENCY_CLOCKS + work), how
