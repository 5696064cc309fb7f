"""Where a kernel's energy goes, from counters: for being on, for bytes by where they come from, for instructions by kind.

    J = watts for being on x seconds + bytes through DRAM x DRAM + bytes through L2 x L2
        + warps' instructions x WARP x (weight of their kinds) + clocks of tensor cores x TENSOR

Fitted to nine kernels on an H200 whose joules the meter counted (benchmarks/energy_tools.py): all are within 1 %, at full clock. A
board at its power limit lowers clock and voltage, and takes up to a tenth less than this says; from board to board it is as much.
Shares of one kernel's energy are what tools read from this; joules are the meter's to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelpro.diagnose.counters import ISSUE_ACTIVE
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.diagnose.pipes import TENSOR, HotCode
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, L2_READ, SECTOR, dram_bytes

CYCLES = "sm__cycles_active.avg"
STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
METRICS = (DRAM_READ, DRAM_WRITTEN, L2_READ, STORED, ISSUE_ACTIVE, CYCLES, TENSOR)
"""What `spent` reads."""

DRAM_PJ, L2_PJ = 72.0, 42.0
"""Picojoules a byte; a byte from DRAM costs both."""
_WARP_PJ = 356.0
"""A warp's instruction of weight 1."""
_TENSOR_PJ = 1700.0
"""A clock of an SM's tensor cores: 1,000 in a product at the board's limit (wgmma), 2,800 beside a copy (mma.sync)."""
_ON = 0.24
"""Of the power limit: 168 of 700 W by the fit, 143 to 160 W in loops that hardly use the device, at full clock."""
_LIMIT_WATTS = 700.0
"""Where the limit is not known."""
WEIGHTS = {"fp64": 3.0, "dmma": 3.0, "special": 3.0, "convert": 1.5}
"""Energy of an instruction against an ordinary one: a double has twice the bits and four times the multiplier, a special function
a table and an interpolation. Estimates: no recorded kernel tells them apart."""
_SCHEDULERS = 4


@dataclass(frozen=True)
class EnergyBreakdown:
    """Picojoules of one kernel in a call."""

    on: float
    dram: float
    l2: float
    instructions: float
    tensor: float

    @property
    def total(self) -> float:
        return self.on + self.dram + self.l2 + self.instructions + self.tensor

    def share(self, picojoules: float) -> float:
        """Of all that the kernel spends."""
        return min(1.0, max(0.0, picojoules) / self.total) if self.total > 0 else 0.0


def energy_breakdown(scene: DiagnosticContext) -> EnergyBreakdown:
    """Raises Missing where the counters were not read."""
    kernel, launches = scene.kernel, max(1.0, scene.kernel.launches)
    clocks = scene.metric(CYCLES) * float(scene.device.get("sms", 1)) * launches
    scene.metric(DRAM_READ)
    return EnergyBreakdown(
        static_watts(scene) * kernel.microseconds * 1e6,
        dram_bytes(kernel) * DRAM_PJ,
        l2_bytes(scene) * L2_PJ,
        scene.metric(ISSUE_ACTIVE) / 100 * _SCHEDULERS * clocks * _WARP_PJ,
        scene.metric(TENSOR) / 100 * clocks * _TENSOR_PJ,
    )


def static_watts(scene: DiagnosticContext) -> float:
    """What the chip takes at full clock while it does nothing."""
    return _ON * float(scene.profile.power.get("limit_watts") or _LIMIT_WATTS)


def l2_bytes(scene: DiagnosticContext) -> float:
    """What a kernel reads from L2 and writes to it in a call."""
    return (scene.metric(L2_READ) + scene.metric(STORED)) * SECTOR * max(1.0, scene.kernel.launches)


def energy_weight(hot: HotCode, gone: Mapping[str, float] | None = None) -> float:
    """Of a pass through the hot code, without the instructions that are `gone`."""
    left = {kind: max(0.0, count - (gone or {}).get(kind, 0.0)) for kind, count in hot.mix.items()}
    return sum(count * WEIGHTS.get(kind, 1.0) for kind, count in left.items())


def energy_saved(scene: DiagnosticContext, hot: HotCode, gone: Mapping[str, float]) -> float:
    """Share of the kernel's energy that goes with these instructions."""
    before = energy_weight(hot)
    cost = energy_breakdown(scene)
    return cost.share(cost.instructions * (1 - energy_weight(hot, gone) / before)) if before > 0 else 0.0
