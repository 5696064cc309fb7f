"""FP64 by accident: a literal such as 0.5 instead of 0.5f, or a double intermediate, in a kernel that needs none."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import hot_code, time_saved
from kernelpro.records import Evidence

FP64 = "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active"
_STRAY = 0.02
"""Share of FP64 in the hot code below which it is the rarely taken path of a library function (sinf of a large argument)."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    doubles = hot.count("fp64", "dmma")
    if doubles / hot.instructions < _STRAY or scene.profile.in_double:
        return None
    slower = float(scene.device.get("fp32_to_fp64", 2.0))
    converts = hot.count("convert")
    # The float version needs about half the instructions: double divisions, roots and exponentials expand to twice the steps.
    gone = {kind: hot.count(kind) for kind in ("fp64", "dmma", "convert")} | {"alu": hot.count("alu") / 2}
    used = scene.metric_or_none(FP64)
    share = max(time_saved(scene, hot, gone), (used or 0.0) / 100 * (1 - 1 / slower))
    evidence = [
        Evidence("double-precision instructions in the hot code", doubles, 0),
        Evidence("conversions", converts),
    ]
    if used is not None:
        evidence.append(Evidence("use of the FP64 pipe", used, 5, "%"))
    return Match(
        evidence=tuple(evidence),
        cause=(
            f"{doubles:.0f} instructions work in double precision, at "
            f"1/{slower:g} of the rate of float, although the task is float32"
        ),
        advice=(
            "keep constants and intermediates in tl.float32: no .to(tl.float64), and no float64 scalars from the host"
            if scene.profile.language == "triton"
            else "write literals with an f (0.5f) and call the float functions (expf, sqrtf, fmaxf)",
            "keep accumulators in float; where more digits are needed, use compensated summation",
        ),
        saved_share=share,
        basis=f"in float the pipes of the SM would need {share:.0%} less time",
        where=scene.code.get("where", {}).get("fp64", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="double_precision",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"at least {_STRAY:.0%} FP64 instructions in the hot code of a task that is not float64",
    remedy="float literals, float functions, float accumulators",
    gain_basis=(
        "busiest pipe with and without FP64 and its conversions, or the measured use of the FP64 pipe times what float saves of it"
    ),
    metrics=(FP64,),
)
