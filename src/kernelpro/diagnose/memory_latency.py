"""Bytes in flight, by Little's law, and what stays unexplained where those suffice: memory, judged without counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelpro.diagnose import occupancy
from kernelpro.diagnose.counters import has_counters
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.diagnose.pipes import GLOBAL, MATRIX, HotCode, dram_clocks, hot_code
from kernelpro.diagnose.traffic import SECTOR, dram_bandwidth, required_bytes
from kernelpro.records import Evidence

LATENCY = 0.75e-6
"""Seconds from a load to its data at a good part of the bandwidth: 0.6 us on an idle device, 1 us near the ceiling."""
ALONE = 0.9
"""Share of the device time that a kernel must have, for the task's bytes to be its bytes."""
_OTHERWISE = (*MATRIX, "tma", "async_copy", "atomic", "membar", "local_load", "local_store", "fp64")
"""Instructions that have tools of their own, whose costs the plain model does not know."""


GUESS = 0.15
"""Share of the time that may be claimed on such a suspicion: it says that something is wrong with memory, not for certain what."""
SUSPECT = 1.5
"""Times what the bytes need, from which a kernel that its code does not explain is suspect: good kernels stay below 1.3."""
_TOLERANCE = 1.2


@dataclass(frozen=True)
class Suspicion:
    factor: float
    """Times what the bytes need."""
    bits: float
    """Width of a thread's load, on average."""

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (
            Evidence("times what the task's bytes need", round(self.factor, 1), SUSPECT, "x"),
            Evidence("bits moved by a thread's load", round(self.bits), None, "bits"),
        )


def required_bytes_in_flight(scene: DiagnosticContext) -> float:
    """Bytes that must be in flight on an SM to fill the bandwidth: latency times bandwidth."""
    return LATENCY * dram_bandwidth(scene) / float(scene.device.get("sms", 132))


def bytes_in_flight(scene: DiagnosticContext, hot: HotCode) -> float:
    """Bytes that the warps of an SM ask for in one pass through the hot code."""
    return _warps(scene) * 32 * hot.bytes_moved(*GLOBAL)


def bandwidth_share(scene: DiagnosticContext) -> float | None:
    """Share of the bandwidth at which the task's bytes move, where the kernel has the call for itself."""
    if scene.kernel.microseconds <= 0 or scene.kernel.share <= ALONE:
        return None
    return required_bytes(scene) / (1e-6 * scene.kernel.microseconds) / dram_bandwidth(scene)


def unexplained_slowdown(scene: DiagnosticContext) -> float:
    """How many times longer than its bytes need the kernel takes, where nothing in its code explains that; else 1.

    The pipes are faster than DRAM, enough bytes are in flight, nothing queues or spills: then its requests bring more
    bytes than the task has, or shared memory takes several turns. A suspicion, for kernels that were not counted.
    """
    hot, share = hot_code(scene), bandwidth_share(scene)
    if has_counters(scene) or not share or hot.count(*_OTHERWISE) or scene.count_instructions("atomic", hot=False):
        return 1.0
    if hot.clocks() > dram_clocks(scene, hot) or bytes_in_flight(scene, hot) < required_bytes_in_flight(scene) or _thin(scene):
        return 1.0
    return max(1.0, 1 / share)


def _thin(scene: DiagnosticContext) -> bool:
    """Whether an SM holds so few warps that this alone may explain a slow kernel."""
    try:
        return occupancy.kernel_occupancy(scene).share < occupancy.LOW
    except MissingData:
        return False


def suspected_sector_waste(scene: DiagnosticContext, least: float, most: float) -> Suspicion | None:
    """Whether partly used sectors would explain a kernel that takes `least` to `most` times what its bytes need.

    Not where data goes through shared memory (bank conflicts), nor beyond what accesses of this width can waste.
    """
    hot, factor = hot_code(scene), unexplained_slowdown(scene)
    widths = {int(bits): count for bits, count in hot.widths.get("global_load", {}).items()}
    if not least <= factor < most or not widths or hot.count("shared_store") >= hot.count("global_load") / 2:
        return None
    bits = sum(width * count for width, count in widths.items()) / sum(widths.values())
    return Suspicion(factor, bits) if factor <= _TOLERANCE * 8 * SECTOR / bits else None


def _warps(scene: DiagnosticContext) -> float:
    """Warps on an SM: as many as fit, and no more than the grid brings; all where nothing is known."""
    try:
        holds = occupancy.kernel_occupancy(scene)
    except MissingData:
        return float(scene.device.get("max_warps_per_sm", 64))
    blocks = math.prod(scene.kernel.grid) / scene.device["sms"] if scene.kernel.grid else holds.blocks
    return min(holds.blocks, blocks) * holds.warps_in_block
