"""Memory traffic: how well a kernel uses the sectors it requests, and what it moves in excess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kernelpro.diagnose.counters import ATTAINABLE, DRAM_READ, DRAM_THROUGHPUT, DRAM_WRITTEN, SECTOR
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.records import Kernel

SCATTERED = 17
"""Sectors per request: coalesced 4-byte accesses need 4, 16-byte accesses 16; 32 is one sector per thread."""
STRIDED = 4.0
"""Factor on the number of sectors: the most that strides and structures of up to four elements cost; full
scatter costs up to eight."""
FEW_BYTES = 7.5
"""Used bytes of a sector below which accesses count as scattered. Arrays of small structures still use a
quarter of each sector: 8 bytes."""
L1_LOADED = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
L1_STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
L2_READ = "lts__t_sectors_srcunit_tex_op_read.sum"

Kind = Literal["loads", "stores"]


def _access_metrics(operation: str) -> tuple[str, str, str]:
    """Requests, sectors, and bytes used per sector of global loads (ld) or stores (st)."""
    return (
        f"l1tex__t_requests_pipe_lsu_mem_global_op_{operation}.sum",
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum",
        f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{operation}.ratio",
    )


_KINDS: dict[Kind, tuple[str, str, str]] = {"loads": _access_metrics("ld"), "stores": _access_metrics("st")}
ACCESS_METRICS = (*_KINDS["loads"], *_KINDS["stores"])


@dataclass(frozen=True)
class GlobalAccess:
    """The global loads, or the global stores, of a kernel."""

    kind: Kind
    per_request: float
    """Sectors per request."""
    used: float
    """Bytes used of each 32-byte sector."""
    excess: float
    """Share of these sectors that coalesced accesses would not need."""
    share: float
    """Its share of the sectors of all global accesses."""


def global_accesses(context: DiagnosticContext) -> list[GlobalAccess]:
    """The global loads and the global stores of the kernel; a kind that it lacks is left out.

    A request needs at least one sector, and (used bytes) / 32 of them: a broadcast uses few bytes of its
    one sector and wastes nothing. The counter of used bytes covers plain loads only, while requests and
    sectors include asynchronous copies. If there are any, the width of the copies gives the used bytes.
    """
    counts = {kind: tuple(map(context.metric, metrics)) for kind, metrics in _KINDS.items()}
    total = sum(sectors for _, sectors, _ in counts.values())
    accesses = []
    for kind, (requests, sectors, used) in counts.items():
        if requests <= 0 or sectors <= 0:
            continue
        per_request = sectors / requests
        if kind == "loads" and (width := _async_copy_width(context)):
            used = min(float(SECTOR), width * context.device.warp_size / per_request)
        if used > 0:  # 0: asynchronous copies in a library kernel that could not be disassembled
            needed = max(1.0, per_request * used / SECTOR)
            excess = max(0.0, 1 - needed / per_request)
            accesses.append(GlobalAccess(kind, per_request, used, excess, sectors / total))
    return accesses


def _async_copy_width(context: DiagnosticContext) -> float:
    """Mean bytes per thread of asynchronous copies and of the loads beside them; 0 without such copies."""
    widths = context.kernel.code.widths if context.kernel.code else {}
    if not widths.get("async_copy"):
        return 0.0
    counts = [
        (int(bits), count)
        for kind in ("async_copy", "global_load")
        for bits, count in widths.get(kind, {}).items()
    ]
    return float(sum(bits / 8 * count for bits, count in counts) / sum(count for _, count in counts))


@dataclass(frozen=True)
class ExcessTraffic:
    """DRAM traffic of a call, compared with the task's minimum bytes."""

    moved: float
    """Bytes of all kernels of a call."""
    required: float
    kernel_share: float
    """This kernel's share of the traffic, 0 to 1."""
    dram_share: float
    """Share of this kernel's time that DRAM determines, 0 to 1."""

    @property
    def factor(self) -> float:
        """Moved over required bytes."""
        return self.moved / self.required

    @property
    def saved_share(self) -> float:
        """Share of the kernel's time that the excess bytes take."""
        return max(0.0, 1 - self.required / self.moved) * self.dram_share if self.moved > 0 else 0.0


def dram_bytes(kernel: Kernel) -> float:
    """DRAM traffic of a kernel in a call; counters are those of one launch."""
    metrics = kernel.metrics
    return (metrics.get(DRAM_READ, 0.0) + metrics.get(DRAM_WRITTEN, 0.0)) * max(1.0, kernel.launches)


def required_bytes(context: DiagnosticContext) -> float:
    """Bytes that the task itself must read and write."""
    required = context.work.total_bytes
    if required <= 0:
        raise MissingData("the task's minimum bytes")
    return required


def excess_traffic(context: DiagnosticContext) -> ExcessTraffic:
    """DRAM traffic of the call, compared with the task's minimum bytes."""
    context.metric(DRAM_READ)
    moved = sum(map(dram_bytes, context.profile.kernels))
    kernel_share = dram_bytes(context.kernel) / moved if moved > 0 else 0.0
    dram_share = min(1.0, context.metric(DRAM_THROUGHPUT) / 100 / ATTAINABLE)
    return ExcessTraffic(moved, required_bytes(context), kernel_share, dram_share)


def dram_bandwidth(context: DiagnosticContext) -> float:
    """The measured peak DRAM bandwidth, in bytes per second."""
    bandwidth = context.device.dram_bandwidth or context.profile.ceilings.bandwidth
    if not bandwidth:
        raise MissingData("the bandwidth of the device")
    return bandwidth


@dataclass(frozen=True)
class WastedSectors:
    """Global accesses that request more sectors than coalesced accesses would need."""

    accesses: tuple[GlobalAccess, ...]

    @property
    def worst(self) -> GlobalAccess:
        """The kind of access that wastes the most sectors."""
        return max(self.accesses, key=lambda access: access.excess * access.share)

    @property
    def share(self) -> float:
        """Share of all requested sectors that is wasted."""
        return sum(access.excess * access.share for access in self.accesses)

    @property
    def kinds(self) -> str:
        """`loads and stores`"""
        return " and ".join(access.kind for access in self.accesses)


def wasted_sectors(
    context: DiagnosticContext, is_wasteful: Callable[[GlobalAccess], bool]
) -> WastedSectors | None:
    """The global accesses of the kernel that are wasteful; None where none is."""
    accesses = tuple(filter(is_wasteful, global_accesses(context)))
    return WastedSectors(accesses) if accesses else None
