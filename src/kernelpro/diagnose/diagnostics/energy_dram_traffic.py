"""Excess DRAM traffic: unnecessary bytes cost energy even where arithmetic hides their time."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.energy_model import DRAM_PJ, L2_PJ, METRICS, energy_breakdown
from kernelpro.diagnose.traffic import dram_bytes, excess_traffic
from kernelpro.records import Evidence

FACTOR = 1.1
"""Moved over minimum bytes: halos, statistics and partial cache lines stay below."""
MIN_SAVED = 0.03


def _analyze(context: DiagnosticContext) -> Match | None:
    traffic, energy = excess_traffic(context), energy_breakdown(context)
    if traffic.factor < FACTOR:
        return None
    excess = dram_bytes(context.kernel) * (1 - 1 / traffic.factor)
    share = energy.share(excess * (DRAM_PJ + L2_PJ))
    if share < MIN_SAVED:
        return None
    return Match(
        evidence=(
            Evidence("DRAM traffic of a call", traffic.moved, traffic.required, "B"),
            percent("share of the kernel's energy in DRAM traffic", energy.share(energy.dram)),
        ),
        cause=f"the kernel moves {excess / 1e6:.0f} MB more through DRAM than the task needs, which costs "
        "energy even where the time is hidden",
        saved_share=share,
        basis=f"{DRAM_PJ + L2_PJ:.0f} pJ per unnecessary byte, as a share of the kernel's energy",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_dram_traffic",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"the kernels of a call move {FACTOR}x the task's minimum bytes through DRAM, and the excess "
    f"takes {MIN_SAVED:.0%} of the kernel's energy",
    remedy="one pass over the inputs; fusion; intermediates in 16 bits; tile order",
    gain_basis="the energy of the unnecessary bytes, in DRAM and L2",
    advice=(
        "read each input once and write each output once: keep tiles in registers or shared memory between "
        "passes",
        "fuse the kernels that exchange intermediates; where those must be stored, use 16 bits if the "
        "tolerance allows",
        "order the blocks so that shared data is still in L2 (swizzled tile order)",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
