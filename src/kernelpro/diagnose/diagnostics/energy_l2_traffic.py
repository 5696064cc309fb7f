"""Repeated L2 reads: each crossing of the chip costs more than a third of the energy of a DRAM access."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.energy_model import L2_PJ, METRICS, energy_breakdown, l2_bytes
from kernelpro.diagnose.traffic import dram_bytes, required_bytes
from kernelpro.records import Evidence

REPEATED = 2.5
"""Moved over required bytes: one pass needs 1, a second pass over cached rows 2."""
_AVOIDABLE = 0.25
"""Share of the repeated reads: tiles twice as long in one direction, or two blocks that share loads, halve
the reads of one operand."""
MIN_SAVED = 0.03


def _analyze(context: DiagnosticContext) -> Match | None:
    moved, required, energy = l2_bytes(context), required_bytes(context), energy_breakdown(context)
    repeated = moved - max(required, dram_bytes(context.kernel))
    share = energy.share(_AVOIDABLE * repeated * L2_PJ)
    if moved < REPEATED * required or share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            Evidence("bytes between L2 and the SMs in a call", moved, required, "B"),
            percent("share of the kernel's energy in L2 traffic", energy.share(energy.l2)),
        ),
        cause=f"each byte of the task moves between L2 and the SMs {moved / required:.1f} times: data is "
        "reused in L2 instead of in the SM",
        saved_share=share,
        basis=f"{L2_PJ:.0f} pJ per byte; about a quarter of the repeated bytes is avoidable, half of one "
        "operand's",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_l2_traffic",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"the SMs move {REPEATED}x the task's bytes to and from L2, and a quarter of the repeated bytes "
    f"takes {MIN_SAVED:.0%} of the kernel's energy",
    remedy="larger tiles, multicast in clusters, reuse in registers and shared memory",
    gain_basis="the energy of a quarter of the repeated bytes",
    advice=(
        "use larger tiles per block: twice the tile in one direction halves the reads of the other operand",
        "let a cluster of blocks load shared operands once (TMA multicast, distributed shared memory)",
        "keep reused data in registers or shared memory instead of loading it again",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    symptom_of=("energy_dram_traffic",),
    objective="energy",
)
