"""Wider precision than needed: products on the FMA pipe, or TF32 products of 16-bit values."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import METRICS, energy_breakdown
from kernelpro.diagnose.hot_code import MATRIX
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

MIN_FMA_SHARE = 0.3
"""Share of the hot code from which multiply-adds are assumed to be the matrix products."""
_TENSOR_ENERGY = 0.1
"""Energy on tensor cores over that on the FMA pipe: 789 TFLOP/s at 700 W, against 51 at about 400 W."""
_HALF_ENERGY = 0.5
"""Energy of bfloat16 products over that of TF32: twice the rate on the same units."""
MIN_SAVED = 0.03


def _analyze(context: DiagnosticContext) -> Match | None:
    work, precision, source = context.work, context.profile.precision, context.profile.source
    if not work.matrix_flops or precision not in ("tf32", "native"):
        return None
    hot, energy = hot_code(context), energy_breakdown(context)
    share = 0.0
    advice: tuple[str, ...]
    if hot.count(*MATRIX):
        is_half = any(word in source for word in ("bfloat16", "bf16", "float16", "half"))
        if precision == "native" and is_half and "tf32" in source:
            share = energy.share(energy.tensor * (1 - _HALF_ENERGY))
        cause = "16-bit values are multiplied as TF32, at twice the energy of a 16-bit product"
        advice = (
            "use 16-bit tensor-core instructions (mma or wgmma with bf16 or f16 operands), float32 "
            "accumulation",
        )
    else:
        fma = hot.share("fma32")
        if fma >= MIN_FMA_SHARE:
            share = energy.share(energy.instructions * fma * (1 - _TENSOR_ENERGY))
        unit = "tf32" if precision == "tf32" else "bf16"
        cause = f"the products run as float32 multiply-adds; {unit} tensor cores need a tenth of the energy"
        advice = (
            f"compute the products with tensor cores in {unit} (wgmma, mma.sync, tl.dot), float32 "
            "accumulation",
            "keep operands in the narrow type from DRAM to the tensor core",
        )
    if share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            Evidence("matrix operations of the task", work.matrix_flops, unit="FLOP"),
            Evidence("tensor-core instructions in the hot code", hot.count(*MATRIX)),
        ),
        cause=cause,
        saved_share=share,
        basis="the energy of the products now, minus that on the narrower unit",
        where=context.line_of("fma32"),
        advice=advice,
    )


DIAGNOSTIC = Diagnostic(
    name="energy_wide_precision",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"matrix products on the FMA pipe ({MIN_FMA_SHARE:.0%} of the hot code) where TF32 or 16 bits "
    "are allowed, or TF32 products of 16-bit values",
    remedy="tensor cores in the narrowest type that the tolerance allows",
    gain_basis="nine tenths of the products' energy, half where only the type is too wide",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
