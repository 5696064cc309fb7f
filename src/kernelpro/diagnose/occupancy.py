"""How many warps an SM can hold: computed from block size, registers and shared memory, without any counter.

Rules of sm_80 and later: registers are allotted to a warp in units of 256 (8 a thread), from the four files of equal
size that an SM has; shared memory comes in units of 128 bytes, and each block costs one KiB more, kept by the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernelpro.diagnose.counters import (
    ATTAINABLE,
    ISSUE_ACTIVE,
    has_counters,
    peak_utilization,
    uses_tensor_cores,
)
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.records import Kernel

REGISTER_UNIT = 256
SHARED_UNIT = 128
SHARED_RESERVED = 1024
PARTS = 4
"""Schedulers of an SM, each with a quarter of the registers."""

ENOUGH = 0.5
"""Occupancy beyond which more warps seldom help: eight warps a scheduler hide the latencies of arithmetic and L2."""
LOW = 0.4
"""Occupancy below which a kernel that waits is worth a look."""
_WAITING = 0.65
"""A kernel whose busiest unit is used less than this waits for latency rather than for a unit."""
_GUESS = 0.15
"""What may be claimed where no counter proves that the kernel waits."""


@dataclass(frozen=True)
class Occupancy:
    warps_in_block: int
    max_warps: int
    limits: dict[str, int]
    """Blocks that fit an SM, by what limits them: registers, shared memory, warps, blocks."""

    @property
    def blocks(self) -> int:
        return min(self.limits.values())

    @property
    def limiter(self) -> str:
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def share(self) -> float:
        return self._share(self.limits)

    @property
    def without_limiter(self) -> float:
        """What it would be if its limiter were not there."""
        return self._share({name: blocks for name, blocks in self.limits.items() if name != self.limiter})

    def _share(self, limits: dict[str, int]) -> float:
        return min(1.0, min(limits.values()) * self.warps_in_block / self.max_warps)


def occupancy(threads: int, registers: int, shared: int, device: dict[str, Any]) -> Occupancy:
    """Occupancy of blocks of this many threads, registers a thread and bytes of shared memory a block."""
    warps = math.ceil(threads / device.get("warp", 32))
    max_warps, max_blocks = int(device["max_warps_per_sm"]), int(device["max_blocks_per_sm"])
    limits = {"warps": max_warps // warps, "blocks": max_blocks}
    if registers > 0:
        for_warp = _up(registers * device.get("warp", 32), REGISTER_UNIT)
        fitting = PARTS * (int(device["registers_per_sm"]) // PARTS // for_warp)
        limits["registers"] = fitting // warps
    limits["shared memory"] = int(device["shared_per_sm"]) // (_up(shared, SHARED_UNIT) + SHARED_RESERVED)
    if min(limits.values()) < 1:
        raise MissingData("an occupancy (a block of this size does not fit an SM)")
    return Occupancy(warps, max_warps, limits)


def kernel_occupancy(scene: DiagnosticContext) -> Occupancy:
    """Occupancy of the scene's kernel."""
    kernel = scene.kernel
    threads = math.prod(kernel.block) if kernel.block else 0
    if not threads or "max_warps_per_sm" not in scene.device:
        raise MissingData("block size and limits of the device")
    return occupancy(
        threads, registers_per_thread(kernel), kernel.static_shared + kernel.dynamic_shared, scene.device
    )


def registers_per_thread(kernel: Kernel) -> int:
    return kernel.registers or int(kernel.code.get("registers", 0))


def grid_blocks(scene: DiagnosticContext) -> int:
    """Blocks in the kernel's grid."""
    if not scene.kernel.grid:
        raise MissingData("the grid")
    return math.prod(scene.kernel.grid)


def waves(scene: DiagnosticContext, holds: Occupancy) -> float:
    """How often the grid fills the device."""
    return grid_blocks(scene) / (int(scene.device["sms"]) * holds.blocks)


def latency_hiding_gain(scene: DiagnosticContext, holds: Occupancy) -> tuple[float, str] | None:
    """What lifting the limiter would save, and how that was derived; None where more warps would not help.

    By Little's law the rate of a kernel that waits for latency grows with its warps, up to half of the device's, and
    until the busiest unit reaches its roof. Kernels on tensor cores hold few warps by design, and a grid that does not
    fill the device once has no blocks left to add.
    """
    target = min(holds.without_limiter, ENOUGH)
    if (
        holds.share >= LOW
        or target < 1.25 * holds.share
        or uses_tensor_cores(scene)
        or waves(scene, holds) < 0.99
    ):
        return None
    if not has_counters(scene):
        if scene.headroom < 1.5:
            return None
        return (
            _GUESS,
            f"a guess without counters: {holds.share:.0%} of the warps, and {scene.headroom:.1f}x above the floor",
        )
    used = max(peak_utilization(scene), scene.metric(ISSUE_ACTIVE) / 100)
    if used > _WAITING:
        return None
    faster = min(target / holds.share, ATTAINABLE / max(used, 0.01))
    how = f"{target:.0%} instead of {holds.share:.0%} of the warps hide more latency, until a unit now used {used:.0%} is full"
    return 1 - 1 / faster, how


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
