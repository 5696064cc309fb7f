"""Barrier stalls: warps wait for each other at __syncthreads()."""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import ATTAINABLE, DRAM_THROUGHPUT, FROM_CODE, KERNEL_BOUNDS, stall_metrics
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.hot_code import MATRIX
from kernelpro.records import Evidence, KernelLoop, PartKind

SHARE = 0.25
"""Share of warp cycles. A healthy row-wise softmax with two block reductions spends 19 % at barriers."""
AVOIDABLE = 0.8
"""Share of the stalls that fewer barriers save; some waiting remains as long as warps exchange data."""
_MIN_SAVED = 0.04
TREE = 12
"""Instructions per barrier in an innermost loop, below which only the exchange lies between barriers: a
level of a tree reduction has two loads, an addition, a store and their addresses. The exchange disappears
with the barriers."""
_EXCHANGE: tuple[PartKind, ...] = (
    *("synchronization", "exchange", "shared_memory", "inactive_lanes"),
    *("waiting_at_barriers", "waiting_for_shared_memory"),
)
"""Parts of the time account that a tree reduction consists of."""
DENSE = 30
"""Instructions per barrier in an innermost loop, below which the loop is suspicious without counters."""
_UNPROVEN_GAIN = 0.07
"""Claimed from the machine code alone: short loops with a barrier are also how a block reduces its sums."""

_SHUFFLES = (
    "reduce within a warp with shuffles, once after the loop; one barrier then combines the warps' sums"
)
_FEWER = "do more work between barriers: larger tiles, double buffering (one barrier per step instead of two)"


def _analyze(context: DiagnosticContext) -> Match | None:
    loop, distance = _densest_loop(context)
    if not context.has_counters:
        return _from_code(context, loop, distance)
    share = context.stall_share("barrier")
    if _waits_for_wgmma(context):
        return None
    if share < SHARE:
        return _busy_exchange(context, distance)
    exchange = context.stall_share("short_scoreboard", "mio_throttle") if distance < TREE else 0.0
    # Shared memory that is saturated by that exchange does not limit the gain; only DRAM does.
    headroom = (
        1 - context.metric(DRAM_THROUGHPUT) / 100 / ATTAINABLE if exchange else context.latency_headroom
    )
    saved = min(AVOIDABLE * (share + exchange), headroom)
    if saved < _MIN_SAVED:
        return None
    evidence = [percent("warp cycles stalled at barriers", share, SHARE)]
    cause = (
        f"warps stall {share:.0%} of their cycles at __syncthreads(), waiting for the slowest warp of "
        "the block"
    )
    basis = f"{AVOIDABLE:.0%} of the {share:.0%} of cycles stalled at barriers"
    if exchange:
        evidence.append(Evidence("instructions per barrier in the loop", round(distance), TREE))
        evidence.append(percent("warp cycles stalled on shared memory", exchange))
        cause += (
            f", and {exchange:.0%} on shared memory between barriers, one of which is executed every "
            f"{distance:.0f} instructions"
        )
        basis += f" and of the {exchange:.0%} stalled on shared memory between them"
    return Match(
        evidence=tuple(evidence),
        cause=cause,
        saved_share=saved,
        basis=f"{basis}, until a unit saturates",
        where=context.hottest_line("barrier") or context.line_of("barrier"),
        advice=_advice(distance),
    )


def _busy_exchange(context: DiagnosticContext, distance: float) -> Match | None:
    """A tree reduction whose warps keep the SM busy with the exchange instead of stalling at barriers."""
    busy = context.part_share(*_EXCHANGE)
    if distance >= TREE or busy < SHARE:
        return None
    return Match(
        evidence=(
            Evidence("instructions per barrier in the loop", round(distance), TREE),
            percent("time of barriers and of the exchange between them", busy, SHARE),
            percent("warp cycles stalled at barriers", context.stall_share("barrier")),
        ),
        cause=f"a barrier every {distance:.0f} instructions: {busy:.0%} of the time is barriers and the "
        "exchange through shared memory between them",
        saved_share=AVOIDABLE * busy,
        basis=f"{AVOIDABLE:.0%} of the {busy:.0%} of the time in barriers and the exchange",
        where=context.hottest_line("barrier") or context.line_of("barrier"),
        advice=_advice(distance),
    )


def _waits_for_wgmma(context: DiagnosticContext) -> bool:
    """Whether warpgroups wait for their own wgmma, which the device counts as stalls at barriers.

    Warps of a wgmma loop synchronize for each product, without __syncthreads(): 39 % of their cycles in a
    product that keeps the tensor cores 90 % busy.
    """
    code = context.kernel.code
    return (
        code is not None and code.count("hgmma") > 0 and not any(loop.count("barrier") for loop in code.loops)
    )


def _densest_loop(context: DiagnosticContext) -> tuple[KernelLoop | None, float]:
    """The innermost loop without tensor cores with the fewest instructions per barrier, and their number.

    None, with the number for the whole kernel, where no loop has a barrier.
    """
    loops = context.kernel.code.innermost_loops if context.kernel.code else ()
    distances = [
        (loop.instructions / loop.count("barrier"), loop)
        for loop in loops
        if loop.count("barrier") and not loop.count(*MATRIX)
    ]
    distance, densest = min(distances, key=lambda pair: pair[0], default=(math.inf, None))
    code = context.kernel.code
    if densest is None and code and code.mix and not code.count(*MATRIX):  # the loop may be unrolled
        instructions = sum(code.mix.values())
        distance = instructions / barriers if (barriers := code.count("barrier")) > 1 else math.inf
    return densest, distance


def _from_code(context: DiagnosticContext, loop: KernelLoop | None, distance: float) -> Match | None:
    if not context.code or loop is None or distance >= DENSE or context.headroom < 1.5:
        return None
    return Match(
        evidence=(Evidence("instructions per barrier in an innermost loop", round(distance), DENSE),),
        cause=f"an innermost loop has a barrier every {distance:.0f} instructions{FROM_CODE}",
        saved_share=_UNPROVEN_GAIN,
        basis="an estimate from the machine code, without counters",
        where=loop.where,
        advice=_advice(distance),
    )


def _advice(distance: float) -> tuple[str, ...]:
    return (
        *((_SHUFFLES, _FEWER) if distance < TREE else (_FEWER, _SHUFFLES)),
        "let independent warps proceed: __syncwarp(), named barriers, one warp per row",
        "use smaller blocks: fewer warps wait, and other blocks fill the gap",
    )


DIAGNOSTIC = Diagnostic(
    name="barrier_stall",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"warps stall {SHARE:.0%} of their cycles at barriers, and no unit is saturated, except shared "
    f"memory in a loop with a barrier every {TREE} instructions; or in such a loop, barriers and the "
    f"exchange between them take {SHARE:.0%} of the time; without counters, a heuristic: an innermost loop "
    f"with a barrier every {DENSE} instructions",
    remedy="fewer barriers: warp-level reductions, larger steps, double buffering",
    gain_basis=f"{AVOIDABLE:.0%} of the stalls at barriers (and in the exchange between them), until a unit "
    "saturates",
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, *stall_metrics("barrier", "short_scoreboard", "mio_throttle")),
    sample_lines=True,
    claims=(
        "waiting_at_barriers",
        "synchronization",
        "exchange",
        "shared_memory",
        "inactive_lanes",
        "waiting_for_shared_memory",
        "control_flow",
        "integer_instructions",
    ),
)
