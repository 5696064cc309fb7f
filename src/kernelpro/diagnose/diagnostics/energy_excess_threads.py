"""Redundant work: inactive lanes, and arithmetic repeated several times while memory determines the time."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, EnergyBreakdown, energy_breakdown, warp_instructions
from kernelpro.diagnose.hot_code import MATRIX, HotCode
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

PREDICATED_ON = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
MIN_PREDICATED_ON = 20.0
"""Threads of 32: healthy softmax and GELU kernels have 24 to 26."""
REPEATED = 8.0
"""Executed over required arithmetic: scans, reductions and comparisons of good kernels stay below."""
_WARP_SHARE = 0.6
"""Share of an instruction's energy that inactive lanes do not save: fetch, decode and scheduling are per
warp."""
MIN_SAVED = 0.05


def _analyze(context: DiagnosticContext) -> Match | None:
    working, lanes = context.metric(PREDICATED_ON), context.device.warp_size
    hot, energy = hot_code(context), energy_breakdown(context)
    if hot.count(*MATRIX) or context.code.count("tma"):
        return None if context.work.matrix_flops else _unneeded_products(hot, energy)
    idle = 0.0
    if working < MIN_PREDICATED_ON:
        idle = energy.share(energy.instructions * (1 - working / lanes) * (1 - _WARP_SHARE))
    # A multiply-add counts as one operation, so the factor is never overstated.
    operations = warp_instructions(context) * working * hot.share("fma32", "half")
    required = context.work.vector_flops + context.work.matrix_flops
    factor = operations / required if required else 0.0
    repeated = 0.0
    if factor > REPEATED and not hot.count("special", "fp64"):
        repeated = energy.share(energy.instructions * (1 - REPEATED / factor))
    share = max(idle, repeated)
    if share < MIN_SAVED:
        return None
    if repeated >= idle:
        cause = (
            f"the kernel does {factor:.0f}x the arithmetic of the task: the same values are computed "
            "repeatedly"
        )
        advice = (
            "compute shared values once per block, in shared memory, or once per row, in registers",
            "drop speculative work whose result is discarded: decide first, then compute",
        )
    else:
        cause = (
            f"only {working:.0f} of a warp's {lanes} threads do work, but instructions are issued for "
            "the whole warp"
        )
        advice = (
            "use fewer threads with more elements each, and blocks that fit the rows, so that no lane idles",
            "make branches warp-uniform: branch on the warp index, bin the work by kind and length",
        )
    return Match(
        evidence=(
            Evidence(
                "threads not predicated off per warp instruction, of 32", round(working, 1), MIN_PREDICATED_ON
            ),
            Evidence("arithmetic over the task's minimum", round(factor, 1), REPEATED, "x"),
        ),
        cause=cause,
        saved_share=share,
        basis="energy of the instructions that full warps, or computing each value once, would not need",
        where=context.line_of("fma32" if repeated >= idle else "branch"),
        advice=advice,
    )


def _unneeded_products(hot: HotCode, energy: EnergyBreakdown) -> Match | None:
    """Tensor cores in use for a task without matrix products."""
    share = energy.share(energy.tensor)
    if share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            Evidence("tensor-core instructions in the hot code", hot.count(*MATRIX), 0),
            Evidence("matrix operations of the task", 0),
        ),
        cause=f"tensor cores take {share:.0%} of the kernel's energy, and the task has no matrix products",
        saved_share=share,
        basis="the energy of the tensor cores",
        advice=(
            "drop products whose result is discarded",
            "replace sums on tensor cores by shuffles and registers: less energy while memory determines the "
            "time",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="energy_excess_threads",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"fewer than {MIN_PREDICATED_ON:g} of 32 threads not predicated off, {REPEATED:g}x the task's "
    f"arithmetic, or tensor cores in a task without products, at {MIN_SAVED:.0%} of the kernel's energy or "
    "more",
    remedy="fewer, fuller warps; shared values computed once",
    gain_basis="the energy of idle lanes' instructions, of the repeated arithmetic, or of the tensor cores",
    bounds=KERNEL_BOUNDS,
    metrics=(*METRICS, PREDICATED_ON),
    symptom_of=("energy_costly_math", "energy_wide_precision"),
    objective="energy",
)
