"""Threads of a warp take different ways: the warp walks all of them, with most lanes switched off."""

from __future__ import annotations

from kernelpro.diagnose.counters import ATTAINABLE, KERNEL_BOUNDS, MEMORY_THROUGHPUT, hottest_line
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

ACTIVE = "smsp__thread_inst_executed_per_inst_executed.ratio"
WORKING = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
ENOUGH = 24.0
"""Lanes of 32. Edges of a grid and the last steps of a reduction cost one or two; a branch that splits each warp halves them."""
WORKS = 20.0
"""Lanes whose predicate is true. Short branches become predicates: healthy softmax and GELU kernels have 24 to 26."""


def look(scene: DiagnosticContext) -> Match | None:
    active, working = scene.metric(ACTIVE), scene.metric(WORKING)
    elected = bool(scene.kernel.code) and scene.count_instructions("tma", "hgmma", hot=False) > 0
    if (active >= ENOUGH and working >= WORKS) or elected or active <= 0:
        return None
    lanes = float(scene.device.get("warp", 32))
    idle, cap = 1 - working / lanes, max(0.0, 1 - scene.metric(MEMORY_THROUGHPUT) / 100 / ATTAINABLE)
    saved = min(idle, cap)
    branching = active < ENOUGH
    return Match(
        evidence=(
            Evidence("lanes of 32 active in an instruction", round(active, 1), ENOUGH),
            Evidence("lanes of 32 that work (predicate true)", round(working, 1), WORKS),
        ),
        cause=f"an instruction works for {working:.0f} of the warp's {lanes:.0f} lanes: "
        + (
            "branches and loops of different length split the warps"
            if branching
            else "predicates switch lanes off"
        ),
        advice=(
            "let a whole warp take the same way: branch on the warp's or the block's index instead of the thread's",
            "sort or bin the work so that neighbours have the same kind and length of it",
            "give a warp the items of one long row together instead of one row to each lane",
            "replace short branches by selection (both sides computed, min/max, ?:)",
        ),
        saved_share=saved,
        basis=f"{idle:.0%} of the lanes are idle; full warps need so much fewer instructions"
        + (", until memory limits" if cap < idle else ""),
        where=hottest_line(scene.kernel, "branch_resolving", "wait", "selected")
        or scene.kernel.code.get("where", {}).get("branch", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="divergence",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"fewer than {ENOUGH:g} of 32 lanes are active in an instruction, or fewer than {WORKS:g} work, on average "
    "(kernels in which one elected lane drives TMA "
    "or wgmma are left out)",
    remedy="warp-uniform branches; work binned by kind and length",
    gain_basis="the share of idle lanes: full warps need so much fewer instructions, until memory limits",
    bounds=KERNEL_BOUNDS,
    metrics=(ACTIVE, WORKING),
    symptom_of=("double_precision", "spills"),
)
