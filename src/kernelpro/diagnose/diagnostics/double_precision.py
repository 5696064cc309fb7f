"""Unintended FP64: a literal such as 0.5 instead of 0.5f, or a double intermediate, in a float kernel."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.hot_code import STRAY_DOUBLES
from kernelpro.diagnose.pipes import hot_code, time_saved
from kernelpro.records import Evidence, InstructionKind

FP64 = "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active"
_REPLACED: tuple[InstructionKind, ...] = ("fp64", "dmma", "convert")


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    doubles = hot.count("fp64", "dmma")
    if hot.share("fp64", "dmma") < STRAY_DOUBLES or context.profile.is_double:
        return None
    slowdown = context.device.fp64_slowdown
    # The float version needs about half the instructions: double divisions, roots and exponentials take twice
    # the steps.
    removed = {kind: hot.count(kind) for kind in _REPLACED} | {"alu": hot.count("alu") / 2}
    utilization = context.metric_or_none(FP64)
    share = max(time_saved(context, hot, removed), (utilization or 0.0) / 100 * (1 - 1 / slowdown))
    evidence = [
        Evidence("FP64 instructions in the hot code", doubles, 0),
        Evidence("conversions", hot.count("convert")),
    ]
    if utilization is not None:
        evidence.append(Evidence("FP64 pipe utilization", utilization, 5, "%"))
    return Match(
        evidence=tuple(evidence),
        cause=f"{doubles:.0f} FP64 instructions in the hot code, at 1/{slowdown:g} of the FP32 rate, "
        "although the task is not float64",
        saved_share=share,
        basis=f"in FP32 the SM pipes would need {share:.0%} less time",
        where=context.line_of("fp64"),
        advice=(
            "keep constants and intermediates in tl.float32: no .to(tl.float64), no float64 scalars from the "
            "host"
            if context.profile.language == "triton"
            else "write float literals (0.5f) and call the float functions (expf, sqrtf, fmaxf)",
            "keep accumulators in float; where more digits are needed, use compensated summation",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="double_precision",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"at least {STRAY_DOUBLES:.0%} FP64 instructions in the hot code of a task that is not float64",
    remedy="float literals, float functions, float accumulators",
    gain_basis="time of the busiest pipe with and without FP64 and its conversions, or the FP64 pipe "
    "utilization times the share of it that FP32 saves",
    metrics=(FP64,),
    claims=(
        "double_precision",
        "conversions",
        "inactive_lanes",
        "integer_instructions",
        "waiting_for_pipes",
        "waiting_for_results",
        "waiting_for_shared_memory",
        "arithmetic",
        "control_flow",
    ),
)
