"""Low parallelism: too few blocks or warps to occupy the device."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.occupancy import (
    Occupancy,
    grid_blocks,
    kernel_occupancy,
    sm_count,
    uses_tensor_cores,
    waves,
)
from kernelpro.records import Evidence

MIN_IDLE = 0.15
"""Share of SMs without a block: tile counts are rarely multiples of 132, and a few idle SMs are no defect."""
FEW_WARPS = 8
"""Warps per SM, two for each scheduler: with fewer, even arithmetic latency is exposed."""
ENOUGH_WARPS = 16
_ATTAINABLE = 0.6
"""Share of the ideal gain that is claimed where it is not measured: splitting work costs a reduction, or
leaves less work per thread."""
_UNPROVEN_GAIN = 0.15


def _analyze(context: DiagnosticContext) -> Match | None:
    occupancy, blocks, sms = kernel_occupancy(context), grid_blocks(context), sm_count(context)
    return (_idle_sms if blocks < sms else _few_warps)(context, occupancy, blocks, sms)


def _idle_sms(context: DiagnosticContext, occupancy: Occupancy, blocks: int, sms: int) -> Match | None:
    idle = 1 - blocks / sms
    if idle < MIN_IDLE:
        return None
    saved, basis = (
        _ATTAINABLE * idle,
        f"{_ATTAINABLE:.0%} of the {idle:.0%} of SMs that are idle, without counters",
    )
    if context.has_counters:
        warps = min(occupancy.warps_per_block, ENOUGH_WARPS)
        saved = min(1 - blocks / sms * warps / ENOUGH_WARPS, context.latency_headroom)
        basis = (
            f"{idle:.0%} of the SMs are idle, the others run {occupancy.warps_per_block} warps; "
            f"{ENOUGH_WARPS} warps on every SM take less time, until a unit saturates"
        )
    return Match(
        evidence=(
            Evidence("blocks", blocks, sms),
            percent("idle SMs", idle, MIN_IDLE),
            Evidence("warps per block", occupancy.warps_per_block),
        ),
        cause=f"{blocks} block{'s run' if blocks > 1 else ' runs'} on a device with {sms} SMs: {idle:.0%} of "
        f"them are idle{context.launch_caveat}",
        saved_share=saved,
        basis=basis,
    )


def _few_warps(context: DiagnosticContext, occupancy: Occupancy, blocks: int, sms: int) -> Match | None:
    """Each SM has a block but few warps, and the grid has no more blocks for the free slots."""
    warps = blocks * occupancy.warps_per_block / sms
    if warps >= FEW_WARPS or waves(context, occupancy) > 0.6 or uses_tensor_cores(context):
        return None
    if context.has_counters:
        if context.peak_utilization > 0.5:
            return None
        ideal = min(1 - warps / ENOUGH_WARPS, context.latency_headroom)
        saved = _ATTAINABLE * ideal
        basis = (
            f"{ENOUGH_WARPS} warps per SM hide latency that {warps:.1f} do not; {_ATTAINABLE:.0%} of the "
            f"ideal {ideal:.0%}"
        )
    elif context.headroom >= 1.5:
        saved = _UNPROVEN_GAIN
        basis = (
            f"an estimate without counters: {warps:.1f} warps per SM, and the call takes "
            f"{context.headroom:.1f}x its floor"
        )
    else:
        return None
    return Match(
        evidence=(Evidence("warps per SM", round(warps, 1), FEW_WARPS), Evidence("blocks", blocks)),
        cause=f"the grid gives each SM only {warps:.1f} warps, too few to hide "
        f"latency{context.launch_caveat}",
        saved_share=saved,
        basis=basis,
    )


DIAGNOSTIC = Diagnostic(
    name="low_parallelism",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"{MIN_IDLE:.0%} or more of the SMs have no block; or the grid gives each SM fewer than "
    f"{FEW_WARPS} warps, with room for more and no unit utilized more than half",
    remedy="more, smaller blocks; split reductions",
    gain_basis=f"the share of idle SMs; for few warps, Little's law up to {ENOUGH_WARPS} warps per SM, "
    "until a unit saturates",
    advice=(
        "split the work finer: more blocks along other dimensions, one warp per row instead of one block, "
        "smaller tiles",
        "split long reductions over several blocks (split-K, two stages, or one atomic per block)",
        "use more threads per item; where the work is small, fuse it with a neighbor or batch it",
    ),
    claims=("idle_sms", *WAITING_PARTS),
)
