"""Bytes through DRAM that the task does not need: they cost energy even where arithmetic hides their time."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.energy_model import DRAM_PJ, L2_PJ, METRICS, energy_breakdown
from kernelpro.diagnose.traffic import dram_bytes, excess_traffic
from kernelpro.records import Evidence

_FACTOR = 1.1
"""Of the fewest bytes: halos, statistics and partial lines stay below."""
_NOTICEABLE = 0.03


def look(scene: DiagnosticContext) -> Match | None:
    over, cost = excess_traffic(scene), energy_breakdown(scene)
    if over.factor < _FACTOR:
        return None
    needless = dram_bytes(scene.kernel) * (1 - 1 / over.factor)
    share = cost.share(needless * (DRAM_PJ + L2_PJ))
    if share < _NOTICEABLE:
        return None
    return Match(
        evidence=(
            Evidence("bytes through DRAM in a call", over.moved, over.fewest, "B"),
            Evidence(
                "energy of this kernel that goes into DRAM's bytes",
                round(100 * cost.share(cost.dram)),
                None,
                "%",
            ),
        ),
        cause=f"{needless / 1e6:.0f} MB through DRAM are beyond what the task needs, whether or not their time is hidden",
        advice=(
            "read each input once and write each output once: keep tiles in registers or shared memory between passes",
            "fuse the kernels that hand intermediates on; where they must be stored, store them in 16 bits if the tolerance allows",
            "order the blocks so that what they share is still in L2 (swizzled tile order)",
        ),
        saved_share=share,
        basis=f"{DRAM_PJ + L2_PJ:.0f} pJ for each needless byte, of all that the kernel spends",
    )


DIAGNOSTIC = Diagnostic(
    name="energy_dram_traffic",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"the kernels of a call move {_FACTOR} times the fewest bytes of the task through DRAM, and the needless ones take "
    f"{_NOTICEABLE:.0%} of the kernel's energy",
    remedy="one pass over the inputs; fusion; intermediates in 16 bits; tile order",
    gain_basis="the energy of the needless bytes, DRAM and L2",
    bounds=KERNEL_BOUNDS,
    metrics=METRICS,
    objective="energy",
)
