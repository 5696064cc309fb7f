"""Spin-waiting: warps poll a flag in a loop and issue instructions all the while."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.energy_model import METRICS, energy_breakdown
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence, KernelLoop

BRANCHES, EXECUTED = "smsp__inst_executed_op_branch.sum", "smsp__inst_executed.sum"
_MIN_DIFFERENCE = 0.1
"""Minimum difference of the share of branches between the polling loop and other code."""
_MIN_SAMPLES = 0.05
"""Share of the stall samples at the loop's line, if lines were sampled: with fewer, the counted branches
belong to other code."""
MIN_SAVED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    loop = next((loop for loop in context.code.loops if loop.asks), None)
    if loop is None or not _is_sampled(context, loop):
        return None
    part, energy = _polling_share(context, loop), energy_breakdown(context)
    share = energy.share(energy.instructions * part)
    if share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            percent("instructions that only poll", part),
            Evidence("instructions per poll", loop.instructions),
        ),
        cause=f"{part:.0%} of the executed instructions come from warps that spin on a flag",
        saved_share=share,
        basis="the energy of the polling instructions, estimated from the share of branches",
        where=loop.where,
    )


def _is_sampled(context: DiagnosticContext, loop: KernelLoop) -> bool:
    samples = {line.where: line.share for line in context.kernel.lines}
    return not samples or samples.get(loop.where, 0.0) >= _MIN_SAMPLES


def _polling_share(context: DiagnosticContext, loop: KernelLoop) -> float:
    """Share of the executed instructions that poll: polling has a higher share of branches."""
    executed = context.metric(EXECUTED)
    total = context.metric(BRANCHES) / executed if executed else 0.0
    polling, work = loop.count("branch") / loop.instructions, hot_code(context).share("branch")
    if polling <= work + _MIN_DIFFERENCE:
        return 0.0
    return min(1.0, max(0.0, (total - work) / (polling - work)))


DIAGNOSTIC = Diagnostic(
    name="energy_spinning",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger="a loop that only polls memory until another thread changes it, and whose iterations take "
    f"{MIN_SAVED:.0%} of the kernel's energy",
    remedy="waits that suspend a warp, or no warps that only wait",
    gain_basis="the energy of the polling instructions",
    advice=(
        "suspend waiting warps: use a barrier or an mbarrier's try_wait, or __nanosleep between polls",
        "launch no warps that only wait: as many as have work, and let those that finish exit",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(*METRICS, BRANCHES, EXECUTED),
    objective="energy",
)
