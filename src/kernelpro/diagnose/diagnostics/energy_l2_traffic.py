"""The same bytes asked of L2 again and again: each way across the chip costs more than a third of a way to DRAM."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import L2_PJ, METRICS, energy_breakdown, l2_bytes
from kernelpro.diagnose.traffic import dram_bytes, required_bytes
from kernelpro.records import Evidence

_AGAIN = 2.5
"""Times the bytes that the task needs: one pass asks for 1, a second pass over rows that stay in cache for 2."""
_PART = 0.25
"""Of the repetitions: tiles twice as long in one direction, or two blocks that share what they load, halve one operand's."""
_NOTICEABLE = 0.03


def look(scene: DiagnosticContext) -> Match | None:
    asked, fewest, cost = l2_bytes(scene), required_bytes(scene), energy_breakdown(scene)
    factor = asked / fewest
    repeated = asked - max(fewest, dram_bytes(scene.kernel))
    share = cost.share(_PART * repeated * L2_PJ)
    if factor < _AGAIN or share < _NOTICEABLE:
        return None
    return Match(
        evidence=(
            Evidence("bytes between L2 and the SMs in a call", asked, fewest, "B"),
            Evidence(
                "energy of this kernel that goes into them", round(100 * cost.share(cost.l2)), None, "%"
            ),
        ),
        cause=f"each byte of the task crosses from L2 to the SMs {factor:.1f} times: the reuse lies in L2 and not in the SM",
        advice=(
            "larger tiles for each block: twice the tile in one direction halves the reads of the other operand",
            "let a cluster of blocks load shared operands once (TMA multicast, distributed shared memory)",
            "keep what the block uses again in registers or shared memory instead of loading it anew",
        ),
        saved_share=share,
        basis=f"{L2_PJ:.0f} pJ a byte, and a quarter of the repetitions go: half of one operand's",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_l2_traffic",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"the SMs ask L2 for {_AGAIN} times the bytes of the task, and a quarter of the repetitions takes {_NOTICEABLE:.0%} of "
    "the kernel's energy",
    remedy="larger tiles, multicast in clusters, reuse in registers and shared memory",
    gain_basis="the energy of a quarter of the repeated bytes",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    symptom_of=("energy_dram_traffic",),
    objective="energy",
)
