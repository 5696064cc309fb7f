"""Where a kernel's energy goes, from counters: static power, bytes by memory level, instructions by kind.

    J = static watts x seconds + DRAM bytes x DRAM_PJ + L2 bytes x L2_PJ
        + warp instructions x _WARP_PJ x (weight of their kinds) + tensor-core clocks x _TENSOR_PJ

Fitted to the measured joules of nine kernels on an H200 (benchmarks/energy_diagnostics.py): all are within
1 %, at full clock. A board at its power limit lowers clock and voltage, and takes up to a tenth less than
this model; boards differ by as much. Diagnostics use shares of one kernel's energy; absolute joules come
from the meter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelpro.diagnose.counters import DRAM_READ, DRAM_WRITTEN, ISSUE_ACTIVE, SECTOR, TENSOR
from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.diagnose.hot_code import HotCode
from kernelpro.diagnose.traffic import L1_STORED, L2_READ, dram_bytes
from kernelpro.records import InstructionKind

CYCLES = "sm__cycles_active.avg"
METRICS = (DRAM_READ, DRAM_WRITTEN, L2_READ, L1_STORED, ISSUE_ACTIVE, CYCLES, TENSOR)
"""The counters of `energy_breakdown`."""

DRAM_PJ, L2_PJ = 72.0, 42.0
"""Picojoules per byte; a byte from DRAM costs both."""
_WARP_PJ = 356.0
"""Per warp instruction of weight 1."""
_TENSOR_PJ = 1700.0
"""Per clock of an SM's tensor cores. Measured: 1,000 in a product at the power limit (wgmma), 2,800 next to a
copy (mma.sync)."""
_STATIC = 0.24
"""Static power over the power limit: the fit gives 168 of 700 W; loops that hardly use the device at full
clock draw 143 to 160 W."""
_LIMIT_WATTS = 700.0
"""The power limit if the profile does not have it."""
WEIGHTS: dict[InstructionKind, float] = {"fp64": 3.0, "dmma": 3.0, "special": 3.0, "convert": 1.5}
"""Energy of an instruction relative to an ordinary one: FP64 has twice the bits and four times the
multiplier, a special function has a table and an interpolation. Estimates: the recorded kernels do not
separate them."""
_SCHEDULERS = 4


@dataclass(frozen=True)
class EnergyBreakdown:
    """Energy of one kernel in a call, in picojoules."""

    static: float
    dram: float
    l2: float
    instructions: float
    tensor: float

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return self.static + self.dram + self.l2 + self.instructions + self.tensor

    def share(self, picojoules: float) -> float:
        """The share of this energy in the total."""
        return min(1.0, max(0.0, picojoules) / self.total) if self.total > 0 else 0.0


def energy_breakdown(context: DiagnosticContext) -> EnergyBreakdown:
    """The energy of the kernel by the model. Raises MissingData where its counters were not collected."""
    clocks = context.metric(CYCLES) * (context.device.sms or 1) * context.launches
    context.metric(DRAM_READ)
    return EnergyBreakdown(
        static_watts(context) * context.kernel.microseconds * 1e6,
        dram_bytes(context.kernel) * DRAM_PJ,
        l2_bytes(context) * L2_PJ,
        warp_instructions(context) * _WARP_PJ,
        context.metric(TENSOR) / 100 * clocks * _TENSOR_PJ,
    )


def warp_instructions(context: DiagnosticContext) -> float:
    """Warp instructions that the kernel issues in a call."""
    clocks = context.metric(CYCLES) * (context.device.sms or 1) * context.launches
    return context.metric(ISSUE_ACTIVE) / 100 * _SCHEDULERS * clocks


def static_watts(context: DiagnosticContext) -> float:
    """Power of the chip at full clock without any work."""
    power = context.profile.power
    return _STATIC * ((power.limit_watts if power else None) or _LIMIT_WATTS)


def l2_bytes(context: DiagnosticContext) -> float:
    """Bytes that the kernel reads from L2 and writes to it in a call."""
    return (context.metric(L2_READ) + context.metric(L1_STORED)) * SECTOR * context.launches


def energy_weight(hot: HotCode, removed: Mapping[InstructionKind, float] | None = None) -> float:
    """Energy of a pass through the hot code, in ordinary instructions, without the `removed` instructions."""
    left = {kind: max(0.0, count - (removed or {}).get(kind, 0.0)) for kind, count in hot.mix.items()}
    return sum(count * WEIGHTS.get(kind, 1.0) for kind, count in left.items())


def energy_saved(context: DiagnosticContext, hot: HotCode, removed: Mapping[InstructionKind, float]) -> float:
    """Share of the kernel's energy that the removed instructions take."""
    before = energy_weight(hot)
    energy = energy_breakdown(context)
    saved = energy.instructions * (1 - energy_weight(hot, removed) / before) if before > 0 else 0.0
    return energy.share(saved)
