"""mma.sync on Hopper: the older, warp-wide instruction reaches about six tenths of what wgmma does."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import TENSOR, hot_code
from kernelpro.records import Bound, Evidence

_REACHES = 0.62
"""Share of wgmma's rate that mma.sync reaches on Hopper, in microbenchmarks of the dense instructions."""
_ASYNCHRONOUS = range(9, 12)
"""Major capabilities with asynchronous matrix instructions: wgmma (9), tcgen05 (10, 11). Desktop chips (12) have mma.sync alone."""


def look(scene: DiagnosticContext) -> Match | None:
    major = int(str(scene.device.get("capability", "0")).split(".")[0])
    flops, ceilings = scene.profile.work.get("matrix_flops", 0.0), scene.profile.ceilings
    products = scene.count_instructions("hmma", hot=False)
    if major not in _ASYNCHRONOUS or not products or scene.count_instructions("hgmma", hot=False) or not flops:
        return None
    rates, work = ceilings.get("rates", {}), scene.profile.work
    rate = rates.get(scene.profile.matrix_unit, 0.0)
    moving = (work.get("read_bytes", 0.0) + work.get("written_bytes", 0.0)) / ceilings["bandwidth"]
    if rate and moving > flops / rate / _REACHES:
        return None  # memory is slower than mma.sync: the family does not matter
    hot = hot_code(scene)
    operands = hot.count("shared_load") / hot.instructions
    name, successor = ("wgmma", "Hopper") if major == 9 else ("tcgen05", "Blackwell")
    evidence = [Evidence("mma.sync instructions", products, 0), Evidence(f"{name} instructions", 0, 1)]
    evidence.append(Evidence("loads of operands among the hot instructions", round(100 * operands), unit="%"))
    if (used := scene.metric_or_none(TENSOR)) is not None:
        evidence.append(Evidence("use of the tensor pipe", used, 80, "%"))
    return Match(
        tuple(evidence),
        (
            f"the products use mma.sync, which on {successor} reaches about "
            f"{_REACHES:.0%} of {name}'s rate and needs every operand in registers"
        ),
        (
            f"use {name}: operands straight from shared memory, 64 x N tiles for a warpgroup, filled by TMA",
            (
                "in Triton tl.dot becomes wgmma with num_warps of 4 or 8, tiles "
                "of at least 64 x 64 and operands that go through shared memory"
            ),
            "take a CuTe / CUTLASS collective for sm_90 and fuse the rest into its epilogue",
        ),
        1 - _REACHES * (1 - operands),
        (
            f"mma.sync reaches {_REACHES:.0%} of {name}'s rate, and {operands:.0%} "
            "of the loop's instructions, which load operands, disappear"
        ),
        scene.code.get("where", {}).get("hmma", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="slow_mma_family",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger="capability 9 to 11, mma.sync in the code and no wgmma, in a task whose products outlast its bytes",
    remedy="wgmma fed by TMA",
    gain_basis=f"mma.sync reaches {_REACHES:.0%} of wgmma's rate; loads of operands into registers go as well",
    bounds=frozenset({Bound.COMPUTE, Bound.MIXED, Bound.LATENCY}),
    metrics=(TENSOR,),
)
