"""Warps that wait by asking: a loop that reads a flag until it changes issues instructions all the while."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.counters import RUNNING
from kernelpro.diagnose.joules import METRICS, spent
from kernelpro.diagnose.pipes import hot_code
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.records import Evidence

BRANCHES, EXECUTED = "smsp__inst_executed_op_branch.sum", "smsp__inst_executed.sum"
_ASKS = ("shared_load", "global_load", "shared_atomic", "atomic")
_SPINS = {*_ASKS, "alu", "branch"}
_LONGEST = 8
"""Instructions of a loop that only asks: an access, a comparison, a jump or two. A search computes an address for each look."""
_DENSER = 0.1
"""By how much jumps must be more frequent than in the work, so that counts tell one from the other."""
_NOTICEABLE = 0.05


def look(scene: Scene) -> Found | None:
    loop = next(filter(_spins, scene.code.get("loops", ())), None)
    if loop is None:
        return None
    part, cost = _spun(scene, loop), spent(scene)
    share = cost.share(cost.instructions * part)
    if share < _NOTICEABLE:
        return None
    return Found(
        evidence=(
            Evidence("instructions that only ask whether it is time", round(100 * part), None, "%"),
            Evidence("instructions of a look", loop["instructions"]),
        ),
        cause=f"{part:.0%} of all instructions are those of warps that ask in a loop whether they may go on",
        advice=(
            "let waiting warps sleep: a barrier or an mbarrier's try_wait stops a warp until it is time, __nanosleep between looks "
            "spares most of them",
            "no warps that only wait: launch as many as have work, and let those that did it finish",
        ),
        saved=share,
        how="the energy of the instructions that ask; their number follows from how many jumps were executed",
        where=loop.get("where", ""),
    )


def _spins(loop: dict[str, Any]) -> bool:
    mix = loop["mix"]
    asks = sum(mix.get(kind, 0) for kind in _ASKS)
    return bool(loop.get("innermost")) and loop["instructions"] <= _LONGEST and asks == 1 and mix.keys() <= _SPINS


def _spun(scene: Scene, loop: dict[str, Any]) -> float:
    """Share of the executed instructions: looks and work have different shares of jumps, and their sum was counted."""
    hot = hot_code(scene)
    jumps, looks, work = (
        scene.metric(BRANCHES) / max(1.0, scene.metric(EXECUTED)),
        loop["mix"].get("branch", 0) / loop["instructions"],
        hot.count("branch") / hot.instructions,
    )
    return min(1.0, max(0.0, (jumps - work) / (looks - work))) if looks > work + _DENSER else 0.0


TOOL = Tool(
    name="energy_spinning",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"a loop of at most {_LONGEST} instructions that only reads, compares and jumps, and whose passes take "
    f"{_NOTICEABLE:.0%} of the kernel's energy",
    remedy="waiting that suspends a warp, or no warps that only wait",
    expects="the energy of the instructions that ask",
    affinity=RUNNING,
    metrics=(*METRICS, BRANCHES, EXECUTED),
    objective="energy",
)
