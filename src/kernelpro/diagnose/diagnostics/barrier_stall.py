"""Warps wait for each other at block-wide barriers."""

from __future__ import annotations

import math
from typing import Any

from kernelpro.diagnose.counters import (
    ATTAINABLE,
    DRAM_THROUGHPUT,
    KERNEL_BOUNDS,
    has_counters,
    hottest_line,
    latency_headroom,
    stall_metrics,
    stall_share,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import MATRIX
from kernelpro.records import Evidence

SHARE = 0.25
"""Of the warps' time: a healthy row-wise softmax with two block reductions spends 19 %."""
AVOIDABLE = 0.8
"""What rarer barriers take away; some waiting stays as long as warps exchange data."""
LEAST = 0.04
TREE = 12
"""Instructions of an innermost loop for each of its barriers, below which what lies between them is nothing but the exchange
they guard: a level of a tree of sums has two loads, an addition, a store and their addresses. The exchange goes with them."""
DENSE = 30
"""Instructions of an innermost loop for each of its barriers, below which the loop is suspect without counters."""
_GUESS = 0.07
"""What may be claimed from the machine code alone: short loops with a barrier are also how a block reduces its sums."""


def look(scene: DiagnosticContext) -> Match | None:
    if not has_counters(scene):
        return _static(scene)
    share = stall_share(scene, "barrier")
    if share < SHARE or _warpgroups_alone(scene):
        return None
    apart = _apart(scene)
    exchange = stall_share(scene, "short_scoreboard", "mio_throttle") if apart < TREE else 0.0
    # A shared memory that is full is full of that exchange; only DRAM then keeps the kernel from being faster.
    left = 1 - scene.metric(DRAM_THROUGHPUT) / 100 / ATTAINABLE if exchange else latency_headroom(scene)
    saved = min(AVOIDABLE * (share + exchange), left)
    if saved < LEAST:
        return None
    evidence = [Evidence("time that warps wait at barriers", round(100 * share), 100 * SHARE, "%")]
    cause = (
        f"warps spend {share:.0%} of their time at __syncthreads(), waiting for the slowest of their block"
    )
    how = f"{AVOIDABLE:.0%} of the {share:.0%} of the time spent at barriers"
    if exchange:
        evidence.append(Evidence("instructions for each barrier in the loop", round(apart), TREE))
        evidence.append(Evidence("time that warps wait for shared memory", round(100 * exchange), None, "%"))
        cause += f", and {exchange:.0%} in the exchange between these: the loop meets a barrier every {apart:.0f} instructions"
        how += f" and of the {exchange:.0%} in the exchange through shared memory that goes with them"
    return _found(
        tuple(evidence),
        cause,
        saved,
        f"{how}, until a unit is full",
        hottest_line(scene.kernel, "barrier") or scene.kernel.code.get("where", {}).get("barrier", ""),
        tree=apart < TREE,
    )


def _warpgroups_alone(scene: DiagnosticContext) -> bool:
    """Whether the waiting is that of warpgroups for their own products, which the device counts as barriers.

    Warps of a wgmma loop meet for each product, without __syncthreads(): 39 % of their time in a product that keeps the
    tensor cores 90 % busy.
    """
    in_loops = any(loop["mix"].get("barrier", 0) for loop in scene.kernel.code.get("loops", ()))
    return bool(scene.kernel.code) and scene.count_instructions("hgmma", hot=False) > 0 and not in_loops


def _with_barriers(scene: DiagnosticContext) -> list[dict[str, Any]]:
    """Innermost loops with barriers and without tensor cores, the one with the least between two barriers first."""
    loops = [
        loop
        for loop in scene.kernel.code.get("loops", ())
        if loop.get("innermost") and loop["mix"].get("barrier", 0)
    ]
    plain = [loop for loop in loops if not any(loop["mix"].get(kind, 0) for kind in MATRIX)]
    return sorted(plain, key=lambda loop: float(loop["instructions"] / loop["mix"]["barrier"]))


def _apart(scene: DiagnosticContext) -> float:
    """Instructions for each barrier, in the loop that meets them most often."""
    return next((loop["instructions"] / loop["mix"]["barrier"] for loop in _with_barriers(scene)), math.inf)


def _static(scene: DiagnosticContext) -> Match | None:
    apart = _apart(scene)
    if not scene.code or apart >= DENSE or scene.headroom < 1.5:
        return None
    worst = _with_barriers(scene)[0]
    return _found(
        (Evidence("instructions for each barrier in an innermost loop", round(apart), DENSE),),
        f"an innermost loop meets a barrier every {apart:.0f} instructions (seen in the machine code; counters were not available)",
        _GUESS,
        "a guess from the machine code, without counters",
        worst.get("where", ""),
        tree=apart < TREE,
    )


def _found(
    evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str, tree: bool
) -> Match:
    shuffles = "reduce within a warp by shuffles, once after the loop; one barrier then joins the warps' sums"
    rarer = "do more between two barriers: larger tiles, double buffers (one barrier a step instead of two)"
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            *((shuffles, rarer) if tree else (rarer, shuffles)),
            "let warps that need nothing of each other go on: __syncwarp(), named barriers, one warp a row",
            "smaller blocks wait for fewer warps, and other blocks fill the gap",
        ),
        saved_share=saved,
        basis=how,
        where=where,
    )


DIAGNOSTIC = Diagnostic(
    name="barrier_stall",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"warps spend {SHARE:.0%} of their time at barriers, and no unit is full, or only the shared memory in a loop with a "
    f"barrier every {TREE} instructions; without counters, a suspicion: an innermost loop with a barrier every {DENSE}",
    remedy="fewer barriers: warp-level reductions, larger steps, double buffering",
    gain_basis=f"{AVOIDABLE:.0%} of the time at barriers (and in the exchange that they alone guard), until a unit is full",
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, *stall_metrics("barrier", "short_scoreboard", "mio_throttle")),
    sample_lines=True,
    symptom_of=("bank_conflicts", "spills", "divergence", "missing_async_copy", "serialized_wgmma"),
)
