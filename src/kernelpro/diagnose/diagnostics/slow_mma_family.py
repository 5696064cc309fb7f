"""mma.sync on Hopper and Blackwell: the warp-wide instruction reaches about 60 % of wgmma's rate."""

from __future__ import annotations

from kernelpro.diagnose.counters import TENSOR
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Bound, Evidence

_RELATIVE_RATE = 0.62
"""Rate of mma.sync over that of wgmma on Hopper, in microbenchmarks of the dense instructions."""
_ASYNCHRONOUS = range(9, 12)
"""Major compute capabilities with asynchronous tensor-core instructions: wgmma (9), tcgen05 (10, 11). Desktop
chips (12) have only mma.sync."""


def _analyze(context: DiagnosticContext) -> Match | None:
    major = int((context.device.capability or "0").split(".")[0])
    flops, ceilings = context.work.matrix_flops, context.profile.ceilings
    count = context.code.count("hmma")
    if major not in _ASYNCHRONOUS or not count or context.code.count("hgmma") or not flops:
        return None
    rate = ceilings.rates.get(context.profile.matrix_unit, 0.0)
    if rate and context.work.total_bytes / ceilings.bandwidth > flops / rate / _RELATIVE_RATE:
        return None  # memory is slower than mma.sync: the instruction does not matter
    operand_loads = hot_code(context).share("shared_load")
    name, chip = ("wgmma", "Hopper") if major == 9 else ("tcgen05", "Blackwell")
    evidence = [
        Evidence("mma.sync instructions", count, 0),
        Evidence(f"{name} instructions", 0, 1),
        percent("operand loads in the hot code", operand_loads),
    ]
    if (used := context.metric_or_none(TENSOR)) is not None:
        evidence.append(Evidence("tensor pipe utilization", used, 80, "%"))
    return Match(
        evidence=tuple(evidence),
        cause=f"the products use mma.sync, which on {chip} reaches about {_RELATIVE_RATE:.0%} of {name}'s "
        "rate and needs every operand in registers",
        saved_share=1 - _RELATIVE_RATE * (1 - operand_loads),
        basis=f"mma.sync reaches {_RELATIVE_RATE:.0%} of {name}'s rate, and the operand loads, "
        f"{operand_loads:.0%} of the loop's instructions, disappear",
        where=context.line_of("hmma"),
        advice=(
            f"use {name}: operands from shared memory, 64 x N tiles per warpgroup, filled by TMA",
            "in Triton tl.dot becomes wgmma with num_warps of 4 or 8, tiles of at least 64 x 64 and operands "
            "in shared memory",
            "use a CuTe / CUTLASS collective for sm_90 and fuse the rest into its epilogue",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="slow_mma_family",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger="compute capability 9 to 11, mma.sync and no wgmma in the code, in a task whose products take "
    "longer than its bytes",
    remedy="wgmma fed by TMA",
    gain_basis=f"mma.sync reaches {_RELATIVE_RATE:.0%} of wgmma's rate; operand loads into registers "
    "disappear as well",
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
    claims=(
        "matrix_instructions",
        "cache_traffic",
        "shared_memory",
        "exchange",
        "waiting_for_pipes",
        "waiting_for_results",
        "waiting_for_shared_memory",
    ),
)
