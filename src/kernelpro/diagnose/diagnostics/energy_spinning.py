"""Warps that wait by asking: a loop that reads a flag until it changes issues instructions all the while."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_breakdown
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

BRANCHES, EXECUTED = "smsp__inst_executed_op_branch.sum", "smsp__inst_executed.sum"
_DENSER = 0.1
"""By how much jumps must be more frequent than in the work, so that counts tell one from the other."""
_SEEN = 0.05
"""Share of the samples at its line, where lines were sampled: jumps elsewhere are not this loop's."""
_NOTICEABLE = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    loop = next((loop for loop in scene.code.get("loops", ()) if loop.get("asks")), None)
    if loop is None or not _seen(scene, loop):
        return None
    part, cost = _spun(scene, loop), energy_breakdown(scene)
    share = cost.share(cost.instructions * part)
    if share < _NOTICEABLE:
        return None
    return Match(
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
        saved_share=share,
        basis="the energy of the instructions that ask; their number follows from how many jumps were executed",
        where=loop.get("where", ""),
    )


def _seen(scene: DiagnosticContext, loop: dict[str, Any]) -> bool:
    samples = {line.where: line.share for line in scene.kernel.lines}
    return not samples or samples.get(loop.get("where", ""), 0.0) >= _SEEN


def _spun(scene: DiagnosticContext, loop: dict[str, Any]) -> float:
    """Share of the executed instructions: looks and work have different shares of jumps, and their sum was counted."""
    hot = hot_code(scene)
    jumps, looks, work = (
        scene.metric(BRANCHES) / scene.metric(EXECUTED) if scene.metric(EXECUTED) else 0.0,
        loop["mix"].get("branch", 0) / loop["instructions"],
        hot.count("branch") / hot.instructions,
    )
    return min(1.0, max(0.0, (jumps - work) / (looks - work))) if looks > work + _DENSER else 0.0


DIAGNOSTIC = Diagnostic(
    name="energy_spinning",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger="a loop that only looks at the same places in memory until another thread has changed them, and whose passes take "
    f"{_NOTICEABLE:.0%} of the kernel's energy",
    remedy="waiting that suspends a warp, or no warps that only wait",
    gain_basis="the energy of the instructions that ask",
    bounds=KERNEL_BOUNDS,
    metrics=(*METRICS, BRANCHES, EXECUTED),
    objective="energy",
)
