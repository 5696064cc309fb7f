"""Matrix products on the ordinary multiply-add units, although the allowed precision permits tensor cores."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.pipes import MATRIX, TENSOR, hot_code
from kernelpro.records import Bound, Evidence, Kernel

_UNITS = ("tf32", "bf16", "fp16")
_IDLE = 2.0
"""Use of the tensor pipe in percent up to which it is idle: shared-memory instructions alone show as 0.4 %."""


def look(scene: DiagnosticContext) -> Match | None:
    unit = scene.profile.matrix_unit
    flops, rates = scene.profile.work.get("matrix_flops", 0.0), scene.profile.ceilings.get("rates", {})
    if unit not in _UNITS or not flops or not _carries_the_products(scene.kernel, scene.profile.kernels):
        return None
    if unit not in rates or "fp32" not in rates:
        raise MissingData(f"the rates of fp32 and {unit}")
    work = scene.profile.work
    on_cores, moving = (
        flops / rates["fp32"],
        (work.get("read_bytes", 0.0) + work.get("written_bytes", 0.0)) / scene.profile.ceilings["bandwidth"],
    )
    used = scene.metric_or_none(TENSOR)
    if moving > on_cores or (used or 0.0) > _IDLE or (not scene.kernel.code and used is None):
        return None
    if scene.kernel.code and (
        scene.count_instructions(*MATRIX, hot=False) or not hot_code(scene).count("fma32", "half", "fp64")
    ):
        return None
    evidence = [
        Evidence("tensor-core instructions", 0, 1),
        Evidence("matrix operations of the task", flops, unit="FLOP"),
    ]
    if used is not None:
        evidence.append(Evidence("use of the tensor pipe", used, _IDLE, "%"))
    slower = rates["fp32"] / rates[unit]
    kept = max(slower, moving / on_cores)
    return Match(
        tuple(evidence),
        (
            f"the products run on multiply-add units: {rates['fp32'] / 1e12:.0f} "
            f"TFLOP/s at best, tensor cores do {rates[unit] / 1e12:.0f} in {unit}"
        ),
        (
            f"compute the products with tensor cores in {unit}: wgmma on Hopper, mma.sync before it, accumulating in float32",
            'in Triton use tl.dot with input_precision="tf32" (not "ieee") on tiles of at least 64 x 64',
            "hand the product to CUTLASS, CuTe or cuBLAS and fuse the rest into its epilogue",
        ),
        1 - kept,
        f"fp32 reaches {slower:.0%} of the {unit} rate on this device (both measured)",
        scene.code.get("where", {}).get("fma32", "") if scene.kernel.code else "",
    )


def _carries_the_products(kernel: Kernel, kernels: tuple[Kernel, ...]) -> bool:
    """Whether this is the kernel with the largest share, and no other uses tensor cores."""
    others = [other for other in kernels if other.name != kernel.name]
    return all(
        other.share <= kernel.share and not any(other.code.get("mix", {}).get(kind) for kind in MATRIX)
        for other in others
    )


DIAGNOSTIC = Diagnostic(
    name="tensor_cores_idle",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=(
        "the task's matrix operations take longer than its bytes at the fp32 rate, "
        "tf32 or bf16 is allowed, and the leading kernel has no tensor-core instruction"
    ),
    remedy="wgmma, mma.sync or tl.dot in the allowed precision",
    gain_basis="1 - fp32 rate / tensor rate, both measured on this device",
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
    symptom_of=("missing_reuse", "double_precision"),
)
