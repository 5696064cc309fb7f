"""Idle tensor cores: matrix products run on the FMA pipe, although the precision permits tensor cores."""

from __future__ import annotations

from kernelpro.diagnose.counters import TENSOR
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.hot_code import MATRIX
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Bound, Evidence

_UNITS = ("tf32", "bf16", "fp16")
_IDLE = 2.0
"""Utilization in percent up to which the tensor pipe counts as idle: shared memory instructions alone show as
0.4 %."""


def _analyze(context: DiagnosticContext) -> Match | None:
    unit = context.profile.matrix_unit
    flops, ceilings, code = context.work.matrix_flops, context.profile.ceilings, context.kernel.code
    if unit not in _UNITS or not flops or not _computes_the_products(context):
        return None
    rates = ceilings.rates
    if unit not in rates or "fp32" not in rates:
        raise MissingData(f"the rates of fp32 and {unit}")
    compute, memory = flops / rates["fp32"], context.work.total_bytes / ceilings.bandwidth
    used = context.metric_or_none(TENSOR)
    if memory > compute or (used or 0.0) > _IDLE or (code is None and used is None):
        return None
    if code and (code.count(*MATRIX) or not hot_code(context).count("fma32", "half", "fp64")):
        return None
    evidence = [
        Evidence("tensor-core instructions", 0, 1),
        Evidence("matrix operations of the task", flops, unit="FLOP"),
    ]
    if used is not None:
        evidence.append(Evidence("tensor pipe utilization", used, _IDLE, "%"))
    relative = rates["fp32"] / rates[unit]
    return Match(
        evidence=tuple(evidence),
        cause=f"the products run on the FMA pipe, which reaches {rates['fp32'] / 1e12:.0f} TFLOP/s; tensor "
        f"cores reach {rates[unit] / 1e12:.0f} in {unit}",
        saved_share=1 - max(relative, memory / compute),
        basis=f"fp32 reaches {relative:.0%} of the {unit} rate on this device (both measured)",
        where=context.line_of("fma32"),
        advice=(
            f"compute the products with tensor cores in {unit}: wgmma on Hopper, mma.sync before, with "
            "float32 accumulation",
            'in Triton, use tl.dot with input_precision="tf32" (not "ieee") on tiles of at least 64 x 64',
            "use CUTLASS, CuTe or cuBLAS for the product and fuse the rest into its epilogue",
        ),
    )


def _computes_the_products(context: DiagnosticContext) -> bool:
    """Whether this is the longest kernel, and no other uses tensor cores."""
    kernel = context.kernel
    return all(
        other.share <= kernel.share and not (other.code and other.code.count(*MATRIX))
        for other in context.profile.kernels
        if other.name != kernel.name
    )


DIAGNOSTIC = Diagnostic(
    name="tensor_cores_idle",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger="the task's matrix operations take longer than its bytes at the fp32 rate, tf32 or bf16 is "
    "allowed, and the longest kernel has no tensor-core instruction",
    remedy="wgmma, mma.sync or tl.dot in the allowed precision",
    gain_basis="1 - fp32 rate / tensor-core rate, both measured on this device",
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
    claims=(
        "arithmetic",
        "cache_traffic",
        "shared_memory",
        "bank_conflicts",
        "exchange",
        "integer_instructions",
        "waiting_for_memory",
        "waiting_at_barriers",
        "waiting_for_shared_memory",
        "waiting_for_results",
        "memory_instructions",
        "wasted_sectors",
    ),
)
