"""Too few blocks or warps to occupy the device."""

from __future__ import annotations

from kernelpro.diagnose.counters import has_counters, latency_headroom, peak_utilization, uses_tensor_cores
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.occupancy import Occupancy, grid_blocks, kernel_occupancy, waves
from kernelpro.records import Evidence

IDLE = 0.15
"""Share of SMs without a block: tiles of a product rarely come in multiples of 132, and a few idle SMs are no defect."""
FEW_WARPS = 8
"""Warps an SM, two for each scheduler: below this even the latency of arithmetic shows."""
ENOUGH_WARPS = 16
_SHARE = 0.6
"""Of the ideal gain, where it is not measured: splitting work costs a reduction, or shorter runs of each thread."""
_GUESS = 0.15


def look(scene: DiagnosticContext) -> Match | None:
    holds = kernel_occupancy(scene)
    blocks, sms = grid_blocks(scene), scene.device["sms"]
    return _idle(scene, holds, blocks, sms) if blocks < sms else _thin(scene, holds, blocks, sms)


def _idle(scene: DiagnosticContext, holds: Occupancy, blocks: int, sms: int) -> Match | None:
    idle = 1 - blocks / sms
    if idle < IDLE:
        return None
    saved = min(idle, latency_headroom(scene)) if has_counters(scene) else _SHARE * idle
    evidence = (
        Evidence("blocks", blocks, sms),
        Evidence("SMs without work", round(100 * idle), 100 * IDLE, "%"),
        Evidence("warps in a block", holds.warps_in_block),
    )
    run = "blocks run" if blocks > 1 else "block runs"
    cause = f"{blocks} {run} on a device of {sms} SMs: {idle:.0%} of it has nothing to do{_proof(scene)}"
    how = (
        f"{idle:.0%} of the SMs are idle; work spread over all of them takes less time, until a unit is full"
    )
    return _found(
        evidence,
        cause,
        saved,
        how if has_counters(scene) else f"{_SHARE:.0%} of the {idle:.0%} of SMs that are idle, without counters",
    )


def _thin(scene: DiagnosticContext, holds: Occupancy, blocks: int, sms: int) -> Match | None:
    """Each SM has a block, but few warps; places for more stay empty because the grid has no more."""
    warps = blocks * holds.warps_in_block / sms
    if warps >= FEW_WARPS or waves(scene, holds) > 0.6 or uses_tensor_cores(scene):
        return None
    if has_counters(scene):
        ideal = min(1 - warps / ENOUGH_WARPS, latency_headroom(scene))
        if peak_utilization(scene) > 0.5:
            return None
        saved, how = (
            _SHARE * ideal,
            f"{ENOUGH_WARPS} warps an SM hide latency that {warps:.1f} do not; {_SHARE:.0%} of the ideal {ideal:.0%}",
        )
    elif scene.headroom >= 1.5:
        saved, how = (
            _GUESS,
            f"a guess without counters: {warps:.1f} warps an SM, and {scene.headroom:.1f}x above the floor",
        )
    else:
        return None
    evidence = (Evidence("warps an SM", round(warps, 1), FEW_WARPS), Evidence("blocks", blocks))
    return _found(
        evidence,
        f"the grid gives each SM only {warps:.1f} warps: too few to hide latency{_proof(scene)}",
        saved,
        how,
    )


def _proof(scene: DiagnosticContext) -> str:
    return "" if has_counters(scene) else " (computed from the launch; counters were not available)"


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "split the work finer: more blocks along the other dimensions, one warp a row instead of one block, smaller tiles",
            "split long reductions over several blocks (split-K, two stages, or one atomic a block)",
            "use more threads for each item; where the work is really small, fuse it with a neighbour or batch it",
        ),
        saved_share=saved,
        basis=how,
    )


DIAGNOSTIC = Diagnostic(
    name="low_parallelism",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"{IDLE:.0%} or more of the SMs have no block; or a grid that leaves each SM fewer than {FEW_WARPS} warps, with room "
    "for more and no unit used more than half",
    remedy="more and smaller pieces of work; split reductions",
    gain_basis=f"the share of idle SMs; for few warps, Little's law towards {ENOUGH_WARPS} warps an SM, until a unit is full",
)
