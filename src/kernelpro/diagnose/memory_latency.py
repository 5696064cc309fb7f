"""Memory-bound kernels without counters: bytes in flight (Little's law), and unexplained slowdowns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelpro.diagnose.counters import SECTOR
from kernelpro.diagnose.diagnostic import DiagnosticContext, Match, MissingData
from kernelpro.diagnose.hot_code import GLOBAL, MATRIX, HotCode
from kernelpro.diagnose.occupancy import LOW, kernel_occupancy, sm_count
from kernelpro.diagnose.pipes import dram_clocks, hot_code
from kernelpro.diagnose.traffic import dram_bandwidth, required_bytes
from kernelpro.records import Evidence, InstructionKind

LATENCY = 0.75e-6
"""Latency of a load in seconds, at moderate load: 0.6 us on an idle device, 1 us near the peak bandwidth."""
DOMINANT = 0.9
"""Share of the device time from which the task's bytes can be attributed to one kernel."""
_NOT_MODELED: tuple[InstructionKind, ...] = (
    *(*MATRIX, "tma", "async_copy", "atomic", "membar"),
    *("local_load", "local_store", "fp64"),
)
"""Instructions whose cost the model does not know; other diagnostics cover them."""

UNPROVEN_GAIN = 0.15
"""Saved share that a heuristic claims: memory is used badly, but no counter shows how."""
SUSPICIOUS = 1.5
"""Kernel time over minimum DRAM time from which a slowdown is reported: good kernels stay below 1.3."""
_TOLERANCE = 1.2


@dataclass(frozen=True)
class Slowdown:
    """A kernel that takes longer than its bytes and its machine code explain."""

    factor: float
    """Kernel time over the minimum DRAM time: that of the task's bytes at full bandwidth."""

    @property
    def evidence(self) -> Evidence:
        """The factor against its threshold."""
        return Evidence("kernel time over minimum DRAM time", round(self.factor, 1), SUSPICIOUS, "x")

    @property
    def basis(self) -> str:
        """The basis of a gain that is claimed without counters."""
        return f"an estimate without counters: {self.factor:.1f}x the minimum DRAM time of the task's bytes"


def required_bytes_in_flight(context: DiagnosticContext) -> float:
    """Bytes in flight per SM that saturate the bandwidth: latency times bandwidth."""
    return LATENCY * dram_bandwidth(context) / (context.device.sms or 132)


def bytes_in_flight(context: DiagnosticContext, hot: HotCode) -> float:
    """Bytes that the warps of an SM request in one pass through the hot code."""
    return _warps_per_sm(context) * 32 * hot.bytes_moved(*GLOBAL)


def bandwidth_share(context: DiagnosticContext) -> float | None:
    """Share of the bandwidth at which the task's bytes move; None unless the kernel dominates the call."""
    kernel = context.kernel
    if kernel.microseconds <= 0 or kernel.share <= DOMINANT:
        return None
    return required_bytes(context) / (1e-6 * kernel.microseconds) / dram_bandwidth(context)


def unexplained_slowdown(context: DiagnosticContext) -> Slowdown:
    """Kernel time over minimum DRAM time, or 1 if the machine code explains the time. Without counters.

    The code does not explain it if the pipes are faster than DRAM, enough bytes are in flight, and there
    are no atomics or spills. What remains: requests fetch more bytes than the task has, or shared memory
    has bank conflicts.
    """
    hot, share = hot_code(context), bandwidth_share(context)
    if context.has_counters or not share or hot.count(*_NOT_MODELED) or context.code.count("atomic"):
        return Slowdown(1.0)
    if (
        hot.clocks() > dram_clocks(context, hot)
        or bytes_in_flight(context, hot) < required_bytes_in_flight(context)
        or _has_low_occupancy(context)
    ):
        return Slowdown(1.0)
    return Slowdown(max(1.0, 1 / share))


def _has_low_occupancy(context: DiagnosticContext) -> bool:
    """Whether low occupancy alone may explain a slow kernel."""
    try:
        return kernel_occupancy(context).share < LOW
    except MissingData:
        return False


def suspect_sector_waste(
    context: DiagnosticContext, least: float, below: float, suspicion: str
) -> Match | None:
    """A match if wasted sectors would explain a slowdown of `least` to `below`, without counters.

    None if data goes through shared memory (then bank conflicts are as likely), or if accesses of this width
    cannot waste that much.
    """
    if context.has_counters:
        return None
    hot, slowdown = hot_code(context), unexplained_slowdown(context)
    widths = {int(bits): count for bits, count in hot.widths.get("global_load", {}).items()}
    staged = hot.count("shared_store") >= hot.count("global_load") / 2
    if not least <= slowdown.factor < below or not widths or staged:
        return None
    bits = sum(width * count for width, count in widths.items()) / sum(widths.values())
    if slowdown.factor > _TOLERANCE * 8 * SECTOR / bits:
        return None
    return Match(
        evidence=(slowdown.evidence, Evidence("bits per load of a thread", round(bits), None, "bits")),
        cause=f"the kernel takes {slowdown.factor:.1f}x the minimum DRAM time of the task's bytes, and "
        f"neither its arithmetic nor too few bytes in flight explain that: {suspicion} (no counters)",
        saved_share=UNPROVEN_GAIN,
        basis=slowdown.basis,
        where=context.line_of("global_load"),
    )


def _warps_per_sm(context: DiagnosticContext) -> float:
    """Warps per SM: as many as fit, limited by the grid; all of them where the launch is unknown."""
    try:
        occupancy = kernel_occupancy(context)
    except MissingData:
        return context.device.max_warps_per_sm or 64
    grid = context.kernel.grid
    blocks = math.prod(grid) / sm_count(context) if grid else occupancy.blocks
    return min(occupancy.blocks, blocks) * occupancy.warps_per_block
