"""The last wave of blocks fills only a part of the device."""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import has_counters, latency_headroom
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.occupancy import grid_blocks, kernel_occupancy, waves
from kernelpro.records import Evidence

CYCLES, BUSY = "sm__cycles_elapsed.avg", "sm__cycles_active.avg"
SHARE = 0.1
"""Of the time: what a rest of a wave must cost to be worth another grid. Ten waves and more never reach it."""


def look(scene: DiagnosticContext) -> Match | None:
    """With w waves, (ceil(w) - w) / ceil(w) of the device's places stay empty.

    Empty places cost that share where blocks last as long alone as in company (they wait for latency); where an SM
    is full with work, only SMs that stand still cost time: those were counted, or follow from blocks an SM.
    """
    holds = kernel_occupancy(scene)
    times = waves(scene, holds)
    empty = (math.ceil(times) - times) / math.ceil(times)
    if times <= 1 or empty < SHARE:
        return None
    each = grid_blocks(scene) / scene.device["sms"]
    if has_counters(scene):
        still = max(0.0, 1 - scene.metric(BUSY) / scene.metric(CYCLES))
        saved = min(max(still, empty * latency_headroom(scene)), empty, latency_headroom(scene))
        how = f"SMs stand still {still:.0%} of the time, and {empty:.0%} of the places for blocks stay empty"
    else:
        still = 1 - each / math.ceil(each)
        saved = still if scene.headroom >= 1.2 else 0.0
        how = f"with {each:.2f} blocks for each SM, {still:.0%} of the SMs' time is idle if all blocks last equally long"
    if saved < SHARE / 2:
        return None
    blocks = grid_blocks(scene)
    unproven = "" if has_counters(scene) else " (computed from the launch; counters were not available)"
    return Match(
        evidence=(
            Evidence("waves of blocks", round(times, 2)),
            Evidence("places for blocks that stay empty", round(100 * empty), 100 * SHARE, "%"),
            Evidence("time that SMs stand still", round(100 * still), None, "%"),
        ),
        cause=f"{blocks} blocks are {times:.2f} waves on {scene.device['sms']} SMs with {holds.blocks} block"
        f"{'s' if holds.blocks > 1 else ''} each: the last wave fills {times - math.floor(times):.0%} of the device{unproven}",
        advice=(
            "choose blocks so that their number is just below a multiple of what the device holds at once "
            f"({scene.device['sms'] * holds.blocks})",
            "make blocks smaller: many short waves leave a small rest",
            "a persistent kernel: as many blocks as fit, each taking the next piece of work until none is left (stream-K)",
        ),
        saved_share=saved,
        basis=how,
    )


DIAGNOSTIC = Diagnostic(
    name="tail_effect",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"more than one wave of blocks, of which {SHARE:.0%} of the places stay empty, while SMs stand still or wait",
    remedy="a grid that fits the device, smaller blocks, or a persistent kernel",
    gain_basis="the time in which SMs stand still; where blocks wait for latency, also the empty places: (ceil(w) - w) / ceil(w)",
    metrics=(CYCLES, BUSY),
)
