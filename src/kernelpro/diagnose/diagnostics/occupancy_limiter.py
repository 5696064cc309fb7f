"""Low occupancy: shared memory or the block size leaves an SM too few warps to hide latency."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.counters import ISSUE_ACTIVE
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.occupancy import LOW, kernel_occupancy, latency_hiding_gain, shared_bytes
from kernelpro.records import Evidence

ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ADVICE = {
    "shared memory": (
        "use less shared memory per block: smaller tiles, fewer stages, a smaller type, or registers for "
        "private data",
        "reuse one buffer for data that is not live at the same time",
        "use more threads per tile: more warps for the same shared memory",
    ),
    "warps": (
        "choose a block size that divides the threads per SM: 128 or 256 threads leave no remainder, 768 or "
        "1024 often do",
        "split a large block into several smaller ones",
    ),
    "blocks": (
        "use larger blocks: with one or two warps each, blocks reach the limit of blocks per SM first",
        "start with 128 to 256 threads per block",
    ),
}


def _analyze(context: DiagnosticContext) -> Match | None:
    occupancy = kernel_occupancy(context)
    gain = latency_hiding_gain(context, occupancy) if occupancy.limiter in _ADVICE else None
    if gain is None:
        return None
    achieved = context.metric_or_none(ACHIEVED)
    threads = 32 * occupancy.warps_per_block
    reason = {
        "shared memory": f"{shared_bytes(context.kernel) / 1024:.0f} KiB of shared memory per block",
        "warps": f"blocks of {threads} threads",
        "blocks": f"blocks of only {threads} threads",
    }[occupancy.limiter]
    return Match(
        evidence=(
            percent("theoretical occupancy", occupancy.share, LOW),
            Evidence("blocks per SM", occupancy.blocks),
            *((Evidence("achieved occupancy", round(achieved), None, "%"),) if achieved is not None else ()),
        ),
        cause=f"{reason} limit the kernel to {occupancy}: too few warps to hide "
        f"latency{context.launch_caveat}",
        saved_share=gain[0],
        basis=gain[1],
        advice=_ADVICE[occupancy.limiter],
    )


DIAGNOSTIC = Diagnostic(
    name="occupancy_limiter",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"shared memory or the block size limits the theoretical occupancy to less than {LOW:.0%}, no "
    "unit is utilized more than 65 %, and the kernel does not use tensor cores; without counters, the call "
    "must also take 1.5x its floor",
    remedy="less shared memory per block, or another block size",
    gain_basis="Little's law: the rate grows with the warps, up to 50 % occupancy, until a unit saturates; "
    "15 % without counters",
    metrics=(ISSUE_ACTIVE,),
    claims=WAITING_PARTS,
)
