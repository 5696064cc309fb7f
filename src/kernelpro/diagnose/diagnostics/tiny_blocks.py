"""Tiny blocks: an SM starts blocks more slowly than they end, and most of its warp slots stay empty."""

from __future__ import annotations

from kernelpro.diagnose.account import WAITING_PARTS
from kernelpro.diagnose.counters import ATTAINABLE, KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.occupancy import ENOUGH, kernel_occupancy, waves
from kernelpro.records import Evidence

ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
SMALL = 4
"""Warps per block up to which a block may end too soon."""
MANY_WAVES = 8.0
"""Waves from which the start of blocks, and not the tail, explains empty slots."""
EMPTY = 0.6
"""Achieved over theoretical occupancy: a kernel whose blocks last reaches 80 to 95 %."""
_LATENCY_BOUND = 0.65


def _analyze(context: DiagnosticContext) -> Match | None:
    occupancy = kernel_occupancy(context)
    achieved = context.metric(ACHIEVED) / 100
    used = context.peak_utilization
    if (
        occupancy.warps_per_block > SMALL
        or waves(context, occupancy) < MANY_WAVES
        or achieved > EMPTY * occupancy.share
        or used > _LATENCY_BOUND
    ):
        return None
    faster = max(1.0, min(ENOUGH / max(achieved, 0.01), ATTAINABLE / max(used, 0.01)))
    threads = 32 * occupancy.warps_per_block
    return Match(
        evidence=(
            percent("achieved occupancy", achieved, EMPTY * occupancy.share),
            percent("theoretical occupancy", occupancy.share),
            Evidence("threads per block", threads),
        ),
        cause=f"blocks of {threads} threads end before the next ones have started: achieved occupancy is "
        f"{achieved:.0%}, theoretical occupancy {occupancy.share:.0%}",
        saved_share=1 - 1 / faster,
        basis=f"{ENOUGH:.0%} instead of {achieved:.0%} occupancy hides more latency, until the busiest unit "
        f"(now {used:.0%}) saturates",
    )


DIAGNOSTIC = Diagnostic(
    name="tiny_blocks",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"blocks of at most {SMALL} warps, {MANY_WAVES:g} waves of them or more, and an achieved "
    f"occupancy below {EMPTY:.0%} of the theoretical one, while no unit is utilized more than "
    f"{_LATENCY_BOUND:.0%}",
    remedy="more work per block: larger blocks, several elements per thread, a persistent grid",
    gain_basis="Little's law: the rate grows with the warps, up to 50 % occupancy, until a unit saturates",
    advice=(
        "use 128 to 256 threads per block, and several 16-byte accesses per thread; in Triton, BLOCK of "
        "1024 and more with num_warps=4",
        "start as many blocks as the device holds, and let each loop over its part (a persistent grid)",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(ACHIEVED,),
    claims=("idle_sms", *WAITING_PARTS),
)
