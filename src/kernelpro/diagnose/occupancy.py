"""Theoretical occupancy: computed from block size, registers and shared memory, without any counter.

Rules of sm_80 and later: registers are allocated per warp in units of 256 (8 per thread), from the four
register files of an SM; shared memory comes in units of 128 bytes, and the driver reserves one KiB more
per block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelpro.diagnose.counters import ATTAINABLE, ISSUE_ACTIVE
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.records import DeviceProperties, Kernel

REGISTER_UNIT = 256
SHARED_UNIT = 128
SHARED_RESERVED = 1024
SCHEDULERS = 4
"""Warp schedulers of an SM, each with a quarter of the registers."""

ENOUGH = 0.5
"""Occupancy beyond which more warps seldom help: eight warps per scheduler hide arithmetic and L2 latency."""
LOW = 0.4
"""Occupancy below which a latency-bound kernel is worth a look."""
_LATENCY_BOUND = 0.65
"""A kernel whose busiest unit is utilized less than this is limited by latency rather than by a unit."""
_UNPROVEN_GAIN = 0.15
"""Saved share that is claimed where no counter proves that the kernel is latency-bound."""


@dataclass(frozen=True)
class Occupancy:
    """How many blocks and warps fit an SM, and what limits them."""

    warps_per_block: int
    max_warps: int
    limits: dict[str, int]
    """Blocks per SM by limiter: registers, shared memory, warps, blocks."""

    @property
    def blocks(self) -> int:
        """Blocks per SM."""
        return min(self.limits.values())

    @property
    def limiter(self) -> str:
        """What limits the blocks per SM."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def share(self) -> float:
        """Theoretical occupancy, 0 to 1."""
        return self._share(self.limits)

    @property
    def without_limiter(self) -> float:
        """Theoretical occupancy without the limiter."""
        return self._share({name: blocks for name, blocks in self.limits.items() if name != self.limiter})

    def _share(self, limits: dict[str, int]) -> float:
        return min(1.0, min(limits.values()) * self.warps_per_block / self.max_warps)

    def __str__(self) -> str:
        return f"{self.blocks} block{'s' if self.blocks > 1 else ''} per SM, {self.share:.0%} occupancy"


def occupancy(threads: int, registers: int, shared: int, device: DeviceProperties) -> Occupancy:
    """Occupancy of blocks with this many threads, registers per thread and bytes of shared memory."""
    if (
        device.max_warps_per_sm is None
        or device.max_blocks_per_sm is None
        or device.registers_per_sm is None
        or device.shared_per_sm is None
    ):
        raise MissingData("block size and limits of the device")
    warps = math.ceil(threads / device.warp_size)
    limits = {"warps": device.max_warps_per_sm // warps, "blocks": device.max_blocks_per_sm}
    if registers > 0:
        per_warp = _round_up(registers * device.warp_size, REGISTER_UNIT)
        limits["registers"] = SCHEDULERS * (device.registers_per_sm // SCHEDULERS // per_warp) // warps
    limits["shared memory"] = device.shared_per_sm // (_round_up(shared, SHARED_UNIT) + SHARED_RESERVED)
    if min(limits.values()) < 1:
        raise MissingData("an occupancy (a block of this size does not fit an SM)")
    return Occupancy(warps, device.max_warps_per_sm, limits)


def kernel_occupancy(context: DiagnosticContext) -> Occupancy:
    """Theoretical occupancy of the kernel."""
    kernel = context.kernel
    if not kernel.block or not math.prod(kernel.block):
        raise MissingData("block size and limits of the device")
    return occupancy(
        math.prod(kernel.block), registers_per_thread(kernel), shared_bytes(kernel), context.device
    )


def registers_per_thread(kernel: Kernel) -> int:
    """Registers per thread; 0: unknown."""
    return kernel.registers or (kernel.code.registers if kernel.code else 0) or 0


def shared_bytes(kernel: Kernel) -> int:
    """Shared memory per block, static and dynamic."""
    return kernel.static_shared + kernel.dynamic_shared


def grid_blocks(context: DiagnosticContext) -> int:
    """Blocks in the kernel's grid."""
    if not context.kernel.grid:
        raise MissingData("the grid")
    return math.prod(context.kernel.grid)


def sm_count(context: DiagnosticContext) -> int:
    """SMs of the device."""
    if context.device.sms is None:
        raise MissingData("the number of SMs")
    return context.device.sms


def uses_tensor_cores(context: DiagnosticContext) -> bool:
    """Whether the kernel has tensor-core instructions; such kernels run at low occupancy by design."""
    code = context.kernel.code
    return code is not None and code.count("hmma", "hgmma", "imma", "dmma") > 0


def waves(context: DiagnosticContext, occupancy: Occupancy) -> float:
    """Blocks of the grid over the blocks that the device holds at once."""
    return grid_blocks(context) / (sm_count(context) * occupancy.blocks)


def latency_hiding_gain(context: DiagnosticContext, occupancy: Occupancy) -> tuple[float, str] | None:
    """Share of the time that lifting the limiter would save, with its basis; None if more warps do not help.

    By Little's law the rate of a latency-bound kernel grows with its warps, up to 50 % occupancy and until
    the busiest unit saturates. Tensor-core kernels run few warps by design, and a grid below one wave has no
    blocks to add.
    """
    target = min(occupancy.without_limiter, ENOUGH)
    if (
        occupancy.share >= LOW
        or target < 1.25 * occupancy.share
        or uses_tensor_cores(context)
        or waves(context, occupancy) < 0.99
    ):
        return None
    if not context.has_counters:
        basis = (
            f"an estimate without counters: {occupancy.share:.0%} occupancy, and the call takes "
            f"{context.headroom:.1f}x its floor"
        )
        return (_UNPROVEN_GAIN, basis) if context.headroom >= 1.5 else None
    used = max(context.peak_utilization, context.metric(ISSUE_ACTIVE) / 100)
    if used > _LATENCY_BOUND:
        return None
    faster = min(target / occupancy.share, ATTAINABLE / max(used, 0.01))
    basis = (
        f"{target:.0%} instead of {occupancy.share:.0%} occupancy hides more latency, until the busiest unit "
        f"(now {used:.0%}) saturates"
    )
    return 1 - 1 / faster, basis


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
