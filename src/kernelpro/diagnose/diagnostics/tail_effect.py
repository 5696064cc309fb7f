"""Tail effect: the last wave of blocks fills only part of the device."""

from __future__ import annotations

import math

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.occupancy import grid_blocks, kernel_occupancy, sm_count, waves
from kernelpro.records import Evidence

ELAPSED, ACTIVE = "sm__cycles_elapsed.avg", "sm__cycles_active.avg"
MIN_EMPTY = 0.1
"""Share of the time that a partial wave must cost to be reported. Ten waves and more never reach it."""


def _analyze(context: DiagnosticContext) -> Match | None:
    """With w waves, (ceil(w) - w) / ceil(w) of the block slots stay empty.

    If blocks are latency-bound, they run no faster with fewer neighbors, and empty slots cost that share of
    the time. If an SM is saturated, only idle SMs cost time: counters show them, or they follow from the
    blocks per SM.
    """
    occupancy, blocks, sms = kernel_occupancy(context), grid_blocks(context), sm_count(context)
    count = waves(context, occupancy)
    empty = (math.ceil(count) - count) / math.ceil(count)
    if count <= 1 or empty < MIN_EMPTY:
        return None
    if context.has_counters:
        headroom = context.latency_headroom
        idle = max(0.0, 1 - context.metric(ACTIVE) / context.metric(ELAPSED))
        saved = min(max(idle, empty * headroom), empty, headroom)
        basis = f"SMs idle {idle:.0%} of the time, and {empty:.0%} of the block slots stay empty"
    else:
        per_sm = blocks / sms
        idle = 1 - per_sm / math.ceil(per_sm)
        saved = idle if context.headroom >= 1.2 else 0.0
        basis = (
            f"with {per_sm:.2f} blocks per SM, {idle:.0%} of the SM time is idle if all blocks last "
            "equally long"
        )
    if saved < MIN_EMPTY / 2:
        return None
    at_once = sms * occupancy.blocks
    return Match(
        evidence=(
            Evidence("waves of blocks", round(count, 2)),
            percent("empty block slots", empty, MIN_EMPTY),
            percent("SM idle time", idle),
        ),
        cause=f"{blocks} blocks are {count:.2f} waves on {sms} SMs with {occupancy.blocks} "
        f"block{'s' if occupancy.blocks > 1 else ''} each: the last wave fills "
        f"{count - math.floor(count):.0%} of the device{context.launch_caveat}",
        saved_share=saved,
        basis=basis,
        advice=(
            f"choose a grid just below a multiple of the blocks that the device holds at once ({at_once})",
            "use smaller blocks: many short waves leave a small tail",
            "use a persistent kernel: as many blocks as fit, each fetching the next work item (stream-K)",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="tail_effect",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"more than one wave of blocks, with {MIN_EMPTY:.0%} of the block slots empty, while SMs idle or "
    "stall",
    remedy="a grid that fits the device, smaller blocks, or a persistent kernel",
    gain_basis="SM idle time; where blocks are latency-bound, also the empty slots: (ceil(w) - w) / ceil(w)",
    metrics=(ELAPSED, ACTIVE),
    claims=("idle_sms",),
)
