"""More bits than the task allows to save: products on multiply-add units, TF32 products of 16-bit values."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_breakdown
from kernelpro.diagnose.pipes import MATRIX, hot_code
from kernelpro.records import Evidence

_PRODUCTS = 0.3
"""Share of multiply-adds in the hot code from which they are the products."""
_LEFT = 0.1
"""Energy that tensor cores take for the same products: 789 TFLOP/s at 700 W against 51 at about 400."""
_HALVES = 0.5
"""TF32 against bfloat16: half the rate of the same units."""
_NOTICEABLE = 0.03


def look(scene: DiagnosticContext) -> Match | None:
    work, precision = scene.profile.work, scene.profile.precision
    if not work.get("matrix_flops") or precision not in ("tf32", "native"):
        return None
    hot, cost = hot_code(scene), energy_breakdown(scene)
    advice: tuple[str, ...]
    if hot.count(*MATRIX):
        halves = any(word in scene.profile.source for word in ("bfloat16", "bf16", "float16", "half"))
        wide = precision == "native" and halves and "tf32" in scene.profile.source
        share = cost.share(cost.tensor * (1 - _HALVES)) if wide else 0.0
        cause = "16-bit values are multiplied as TF32, at twice the energy of a 16-bit product"
        advice = (
            "use the 16-bit form of the instruction (mma or wgmma with bf16 or f16 operands), accumulating in float32",
        )
    else:
        part = hot.count("fma32") / hot.instructions
        share = cost.share(cost.instructions * part * (1 - _LEFT)) if part >= _PRODUCTS else 0.0
        unit = "tf32" if precision == "tf32" else "bf16"
        cause = f"the products run as single multiply-adds in float32, which {unit} tensor cores do for a tenth of the energy"
        advice = (
            f"compute the products with tensor cores in {unit} (wgmma, mma.sync, tl.dot), accumulating in float32",
            "keep operands in the narrow type from DRAM to the tensor core",
        )
    if share < _NOTICEABLE:
        return None
    return Match(
        evidence=(
            Evidence("matrix operations of the task", work["matrix_flops"], unit="FLOP"),
            Evidence("tensor-core instructions in the hot code", hot.count(*MATRIX)),
        ),
        cause=cause,
        advice=advice,
        saved_share=share,
        basis="the energy of the products now, less what the narrower unit takes for them",
        where=scene.code.get("where", {}).get("fma32", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="energy_wide_precision",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=f"matrix products on multiply-add units ({_PRODUCTS:.0%} of the hot code) where TF32 or 16 bits are allowed, or TF32 "
    "products of 16-bit values",
    remedy="tensor cores in the narrowest type that the tolerance allows",
    gain_basis="nine tenths of the products' energy, half where only the type is too wide",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
