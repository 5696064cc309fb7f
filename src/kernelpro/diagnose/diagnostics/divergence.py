"""Warp divergence: threads of a warp take different paths, and most lanes are inactive."""

from __future__ import annotations

from kernelpro.diagnose.counters import ATTAINABLE, KERNEL_BOUNDS, MEMORY_THROUGHPUT
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

ACTIVE = "smsp__thread_inst_executed_per_inst_executed.ratio"
PREDICATED_ON = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
MIN_ACTIVE = 24.0
"""Threads of 32. Grid edges and the last steps of a reduction cost one or two; a branch that splits each
warp half."""
MIN_PREDICATED_ON = 20.0
"""Threads of 32. Short branches become predicates: healthy softmax and GELU kernels have 24 to 26."""


def _analyze(context: DiagnosticContext) -> Match | None:
    active, working = context.metric(ACTIVE), context.metric(PREDICATED_ON)
    code = context.kernel.code
    elects = code is not None and code.count("tma", "hgmma") > 0
    if (active >= MIN_ACTIVE and working >= MIN_PREDICATED_ON) or elects or active <= 0:
        return None
    lanes = context.device.warp_size
    idle = 1 - working / lanes
    headroom = max(0.0, 1 - context.metric(MEMORY_THROUGHPUT) / 100 / ATTAINABLE)
    reason = (
        "it diverges at branches or in loops of different length"
        if active < MIN_ACTIVE
        else "predicates switch lanes off"
    )
    return Match(
        evidence=(
            Evidence("active threads per warp instruction, of 32", round(active, 1), MIN_ACTIVE),
            Evidence(
                "threads not predicated off per warp instruction, of 32", round(working, 1), MIN_PREDICATED_ON
            ),
        ),
        cause=f"on average only {working:.0f} of a warp's {lanes} threads execute an instruction: {reason}",
        saved_share=min(idle, headroom),
        basis=f"{idle:.0%} of the lanes are idle; full warps need {idle:.0%} fewer instructions"
        + (", until memory becomes the bottleneck" if headroom < idle else ""),
        where=context.hottest_line("branch_resolving", "wait", "selected") or context.line_of("branch"),
    )


DIAGNOSTIC = Diagnostic(
    name="divergence",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"on average fewer than {MIN_ACTIVE:g} of 32 threads are active in an instruction, or fewer than "
    f"{MIN_PREDICATED_ON:g} not predicated off (kernels in which one elected thread drives TMA or wgmma are "
    "exempt)",
    remedy="warp-uniform branches; work binned by kind and length",
    gain_basis="the share of idle lanes, by which full warps need fewer instructions, until memory becomes "
    "the bottleneck",
    advice=(
        "make branches warp-uniform: branch on the warp or block index instead of the thread index",
        "sort or bin the work, so that neighboring threads have work of the same kind and length",
        "process one long row with a whole warp instead of one row per thread",
        "replace short branches by selection (compute both sides; min/max, ?:)",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(ACTIVE, PREDICATED_ON),
    claims=(
        "inactive_lanes",
        "control_flow",
        "waiting_for_results",
        "waiting_for_instructions",
    ),
)
