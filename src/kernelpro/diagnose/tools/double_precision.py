"""FP64 by accident: a literal such as 0.5 instead of 0.5f, or a double intermediate, in a kernel that needs none."""

from __future__ import annotations

from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.records import Evidence


def look(scene: Scene) -> Found | None:
    doubles = scene.mix("fp64", "dmma")
    if not doubles or scene.profile.precision == "native" and "float64" in scene.profile.source:
        return None
    slower = scene.device.get("fp32_to_fp64", 2.0)
    others = scene.mix("fma32", "alu", "half", "special", "convert") + scene.mix("global_load", "global_store")
    converts = scene.mix("convert")
    spent = slower * doubles
    saved = scene.get("sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active")
    share = saved / 100 if saved is not None else spent / (spent + others)
    return Found(
        evidence=(Evidence("double-precision instructions in the hot code", doubles, 0), Evidence("conversions", converts)),
        cause=f"{doubles} instructions work in double precision, at 1/{slower:g} of the rate of float, although the task is float32",
        advice=(
            "write literals with an f (0.5f) and call the float functions (expf, sqrtf, fmaxf)",
            "keep accumulators in float; where more digits are needed, use compensated summation",
        ),
        saved=share * 0.9,
        how=f"the FP64 pipe accounts for about {share:.0%} of the time",
        where=scene.code.get("where", {}).get("fp64", ""),
    )


TOOL = Tool(
    name="double_precision",
    level="instruction",
    target="cuda",
    look=look,
    trigger="any FP64 instruction in the hot code of a task that is not float64",
    remedy="float literals, float functions, float accumulators",
    expects="the share of the FP64 pipe (or of FP64 instructions, weighted by their rate) disappears",
)
