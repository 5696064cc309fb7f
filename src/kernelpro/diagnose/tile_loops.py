"""Loops over tiles in shared memory, and how much of a tile's load latency is exposed."""

from __future__ import annotations

import contextlib
import math

from kernelpro.diagnose.counters import stall_metrics
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.diagnose.hot_code import MATRIX, HotCode
from kernelpro.diagnose.occupancy import kernel_occupancy
from kernelpro.records import InstructionKind, KernelLoop

REASONS = ("long_scoreboard", "barrier")
METRICS = stall_metrics(*REASONS)
_LATENCY_CLOCKS = 800
"""From requesting a tile to having it in shared memory: DRAM latency under moderate load, and a barrier."""
_MIN_STALL_SHARE = 0.3
"""Share of warp cycles stalled on memory and barriers from which overlap is missing."""
_COMPUTE: tuple[InstructionKind, ...] = ("fma32", "half", *MATRIX)


def tile_loop(context: DiagnosticContext, *copies: InstructionKind) -> KernelLoop | None:
    """The smallest loop that fills tiles with these instructions, has a barrier, and computes on them."""
    loops = [
        loop
        for loop in context.code.loops
        if _computes_on_tiles(loop) and all(loop.count(kind) for kind in copies)
    ]
    return min(loops, key=lambda loop: loop.instructions, default=None)


def _computes_on_tiles(loop: KernelLoop) -> bool:
    hot = HotCode.of_loop(loop)
    stored, loaded = hot.bytes_moved("shared_store"), hot.bytes_moved("global_load")
    if not loop.count("async_copy") and not loaded / 2 <= stored <= 2 * loaded:
        return False  # the loop stores something else than what it loads, for example in a reduction
    from_shared = loop.count("shared_load", "hgmma")  # wgmma reads its operands from shared memory
    return bool(loop.count("barrier") and from_shared and loop.count(*_COMPUTE))


def exposed_latency(context: DiagnosticContext, loop: KernelLoop) -> tuple[float, str]:
    """Share of the time in which a tile's latency is exposed, and the basis of that estimate.

    With counters: stalls on memory and barriers, limited by the headroom of the units. Else a model of one
    step: blocks on an SM hide each other's latency, so that b blocks of work w with latency L take max(b
    w, L + w).
    """
    if context.has_counters and all(context.metric_or_none(name) is not None for name in METRICS):
        stalled, headroom = context.stall_share(*REASONS), context.latency_headroom
        basis = (
            f"warps stall {stalled:.0%} of their cycles on tiles and barriers; the busiest unit has "
            f"{headroom:.0%} headroom"
        )
        return min(stalled, headroom) if stalled >= _MIN_STALL_SHARE else 0.0, basis
    blocks, threads = 1, math.prod(context.kernel.block) if context.kernel.block else 256
    with contextlib.suppress(MissingData):  # one block, as for large tiles
        blocks = kernel_occupancy(context).blocks
    work = threads * HotCode.of_loop(loop).clocks()
    basis = (
        f"a step waits about {_LATENCY_CLOCKS} clocks for its tile and computes for {work:.0f}, with "
        f"{blocks} block{'s' if blocks > 1 else ''} per SM"
    )
    return 1 - blocks * work / max(blocks * work, _LATENCY_CLOCKS + work), basis
