"""Work that nobody needs: lanes that are switched off, and arithmetic done several times over while memory sets the pace."""

from __future__ import annotations

from kernelpro.diagnose.counters import ISSUE_ACTIVE, KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import CYCLES, METRICS, EnergyBreakdown, energy_breakdown
from kernelpro.diagnose.pipes import MATRIX, HotCode, hot_code
from kernelpro.records import Evidence

WORKING = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
_WORKS = 20.0
"""Lanes of 32 whose predicate is true: healthy softmax and GELU kernels have 24 to 26."""
_AGAIN = 8.0
"""Times the task's own arithmetic: scans, reductions and comparisons of good kernels stay below."""
_SHARE_OF_LANE = 0.6
"""A lane that is off saves its part of the data path; fetching, decoding and scheduling are the warp's."""
_NOTICEABLE = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    working, lanes = scene.metric(WORKING), float(scene.device.get("warp", 32))
    hot, cost = hot_code(scene), energy_breakdown(scene)
    if hot.count(*MATRIX) or scene.count_instructions("tma", hot=False):
        return None if scene.profile.work.get("matrix_flops") else _products(hot, cost)
    idle = (
        cost.share(cost.instructions * (1 - working / lanes) * (1 - _SHARE_OF_LANE))
        if working < _WORKS
        else 0.0
    )
    done = _floating(scene, hot.count("fma32", "half") / hot.instructions, working)
    needed = scene.profile.work.get("vector_flops", 0.0) + scene.profile.work.get("matrix_flops", 0.0)
    factor = done / needed if needed else 0.0
    again = (
        cost.share(cost.instructions * (1 - _AGAIN / factor))
        if factor > _AGAIN and not hot.count("special", "fp64")
        else 0.0
    )
    share = max(idle, again)
    if share < _NOTICEABLE:
        return None
    if again >= idle:
        cause = f"the kernel does {factor:.0f} times the arithmetic of the task: the same values are computed again and again"
        advice = (
            "compute shared values once for each block and keep them in shared memory, or once for each row and in registers",
            "drop guesses whose result is thrown away: decide first, then compute",
        )
    else:
        cause = f"an instruction works for {working:.0f} of the warp's {lanes:.0f} lanes, and is fetched and issued for all of them"
        advice = (
            "fewer threads with more elements each; blocks that fit the rows, so that no lane idles",
            "let whole warps take the same way: branch on the warp's index, bin the work by kind and length",
        )
    return Match(
        evidence=(
            Evidence("lanes of 32 that work", round(working, 1), _WORKS),
            Evidence("arithmetic done, times the task's own", round(factor, 1), _AGAIN),
        ),
        cause=cause,
        advice=advice,
        saved_share=share,
        basis="the energy of the instructions that full warps, or values computed once, would do without",
        where=scene.code.get("where", {}).get("fma32" if again >= idle else "branch", ""),
    )


def _products(hot: HotCode, cost: EnergyBreakdown) -> Match | None:
    """Tensor cores at work for a task that multiplies no matrices."""
    share = cost.share(cost.tensor)
    if share < _NOTICEABLE:
        return None
    return Match(
        evidence=(
            Evidence("products of tensor cores in the hot code", hot.count(*MATRIX), 0),
            Evidence("matrix operations of the task", 0),
        ),
        cause=f"tensor cores take {share:.0%} of the kernel's energy, and the task multiplies no matrices",
        advice=(
            "drop products whose result is thrown away",
            "where they add up: sums by shuffles and registers take less energy while memory sets the pace",
        ),
        saved_share=share,
        basis="the energy of the tensor cores",
    )


def _floating(scene: DiagnosticContext, part: float, working: float) -> float:
    """Operations that the kernel executes on floats: multiply-adds count as one, so nothing is overstated."""
    issued = (
        scene.metric(ISSUE_ACTIVE)
        / 100
        * 4
        * scene.metric(CYCLES)
        * float(scene.device.get("sms", 1))
        * max(1.0, scene.kernel.launches)
    )
    return issued * working * part


DIAGNOSTIC = Diagnostic(
    name="energy_excess_threads",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"fewer than {_WORKS:g} of 32 lanes work, {_AGAIN:g} times the task's arithmetic is done, or tensor cores work for a "
    f"task without products, at {_NOTICEABLE:.0%} of the kernel's energy or more",
    remedy="fewer, fuller warps; shared values computed once",
    gain_basis="the energy of idle lanes' instructions, of the arithmetic beyond, or of the tensor cores",
    bounds=KERNEL_BOUNDS,
    metrics=(*METRICS, WORKING),
    symptom_of=("energy_costly_math", "energy_wide_precision"),
    objective="energy",
)
