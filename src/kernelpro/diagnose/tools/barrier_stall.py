"""Warps wait for each other at block-wide barriers."""

from __future__ import annotations

from kernelpro.diagnose.counters import RUNNING, counted, hot_line, room, stalled, stalls
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.records import Evidence

SHARE = 0.25
"""Of the warps' time: a healthy row-wise softmax with two block reductions spends 19 %."""
AVOIDABLE = 0.8
"""What rarer barriers take away; some waiting stays as long as warps exchange data."""
LEAST = 0.04
DENSE = 30
"""Instructions of an innermost loop for each of its barriers, below which the loop is suspect without counters."""
_GUESS = 0.07
"""What may be claimed from the machine code alone: short loops with a barrier are also how a block reduces its sums."""


def look(scene: Scene) -> Found | None:
    if not counted(scene):
        return _static(scene)
    share = stalled(scene, "barrier")
    saved = min(AVOIDABLE * share, room(scene))
    if share < SHARE or saved < LEAST:
        return None
    return _found(
        (Evidence("time that warps wait at barriers", round(100 * share), 100 * SHARE, "%"),),
        f"warps spend {share:.0%} of their time at __syncthreads(), waiting for the slowest of their block",
        saved,
        f"{AVOIDABLE:.0%} of the {share:.0%} of the time spent at barriers, until a unit is full",
        hot_line(scene.it, "barrier") or scene.it.code.get("where", {}).get("barrier", ""),
    )


def _static(scene: Scene) -> Found | None:
    loops = [loop for loop in scene.code.get("loops", ()) if loop.get("innermost") and loop["mix"].get("barrier", 0)]
    dense = [loop for loop in loops if loop["instructions"] / loop["mix"]["barrier"] < DENSE and not _on_tensor_cores(loop["mix"])]
    if not dense or scene.headroom < 1.5:
        return None
    worst = min(dense, key=lambda loop: loop["instructions"] / loop["mix"]["barrier"])
    apart = worst["instructions"] / worst["mix"]["barrier"]
    return _found(
        (Evidence("instructions for each barrier in an innermost loop", round(apart), DENSE),),
        f"an innermost loop meets a barrier every {apart:.0f} instructions (seen in the machine code; counters were not available)",
        _GUESS,
        "a guess from the machine code, without counters",
        worst.get("where", ""),
    )


def _on_tensor_cores(mix: dict[str, int]) -> bool:
    return any(mix.get(kind, 0) for kind in ("hmma", "hgmma", "imma", "dmma"))


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str) -> Found:
    return Found(
        evidence=evidence,
        cause=cause,
        advice=(
            "do more between two barriers: larger tiles, double buffers (one barrier a step instead of two)",
            "reduce within a warp by shuffles first; one barrier then joins the warps' sums",
            "let warps that need nothing of each other go on: __syncwarp(), named barriers, one warp a row",
            "smaller blocks wait for fewer warps, and other blocks fill the gap",
        ),
        saved=saved,
        how=how,
        where=where,
    )


TOOL = Tool(
    name="barrier_stall",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"warps spend {SHARE:.0%} of their time at barriers and no unit is full; without counters, a suspicion: an innermost "
    f"loop with a barrier every {DENSE} instructions or fewer",
    remedy="fewer barriers: warp-level reductions, larger steps, double buffering",
    expects=f"{AVOIDABLE:.0%} of the time at barriers, until a unit is full",
    affinity=RUNNING,
    metrics=stalls("barrier"),
    lines=True,
    symptom_of=("bank_conflicts", "spills", "divergence", "missing_async_copy"),
)
