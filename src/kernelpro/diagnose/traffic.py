"""Bytes: how well a kernel's requests use the sectors they fetch, and what it moves beyond what the task needs."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.diagnose.counters import ATTAINABLE, DRAM_THROUGHPUT
from kernelpro.diagnose.diagnostic import DiagnosticContext, MissingData
from kernelpro.records import Kernel

SECTOR = 32
"""Bytes that caches and DRAM move at least."""
SCATTERED = 17
"""Sectors a request: packed 4-byte accesses need 4, packed 16-byte ones 16; 32 is one for each thread."""
STRIDED = 4.0
"""Times the sectors: the most that strides and structures of up to four elements cost; complete scatter costs up to eight."""
FEW_BYTES = 7.5
"""Used of a sector: a quarter of it is 8 bytes, which arrays of small structures still reach."""
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L1_LOADED = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
L1_STORED = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
LOADED_BYTES_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
L2_READ = "lts__t_sectors_srcunit_tex_op_read.sum"
_OPERATIONS = {"loads": "ld", "stores": "st"}

ACCESS_METRICS = tuple(
    name
    for op in _OPERATIONS.values()
    for name in (
        f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum",
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum",
        f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio",
    )
)


@dataclass(frozen=True)
class GlobalAccess:
    """The global loads, or the global stores, of a kernel."""

    kind: str
    """loads or stores"""
    per_request: float
    """Sectors that a warp's request touches."""
    used: float
    """Bytes used of each sector of 32."""
    excess: float
    """Share of this kind's sectors that packed accesses would not need."""
    part: float
    """Sectors of this kind among those of all global accesses."""


def global_accesses(scene: DiagnosticContext) -> list[GlobalAccess]:
    """Loads and stores of the kernel, those that happen.

    A request needs at least one sector, and (used bytes) / 32 of them: one value for all threads of a warp uses few
    bytes of its one sector, and wastes nothing. The counter of used bytes knows plain loads only, while those of requests
    and sectors also see asynchronous copies: for these the width of the copies tells what is used.
    """
    counts = {
        kind: (
            scene.metric(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum"),
            scene.metric(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum"),
            scene.metric(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio"),
        )
        for kind, op in _OPERATIONS.items()
    }
    total = sum(sectors for _, sectors, _ in counts.values())
    found = []
    for kind, (requests, sectors, used) in counts.items():
        if requests > 0 and sectors > 0:
            per_request = sectors / requests
            if kind == "loads" and (width := _copied(scene)):
                used = min(float(SECTOR), width * int(scene.device.get("warp", 32)) / per_request)
            if used == 0:  # asynchronous copies in code that could not be read: a library's
                continue
            needed = max(1.0, per_request * used / SECTOR)
            found.append(GlobalAccess(kind, per_request, used, max(0.0, 1 - needed / per_request), sectors / total))
    return found


def _copied(scene: DiagnosticContext) -> float:
    """Bytes that an asynchronous copy, or a load beside it, brings for a thread on average; 0 in code without such copies."""
    widths = scene.kernel.code.get("widths", {})
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
    """What a call reads from DRAM and writes to it, against the fewest bytes of the task."""

    moved: float
    """Bytes of all kernels of a call."""
    fewest: float
    own: float
    """This kernel's part of what is moved, 0 to 1."""
    bound: float
    """How far DRAM sets this kernel's time, 0 to 1."""

    @property
    def factor(self) -> float:
        return self.moved / self.fewest

    @property
    def saved(self) -> float:
        return max(0.0, 1 - self.fewest / self.moved) * self.bound if self.moved > 0 else 0.0


def dram_bytes(kernel: Kernel) -> float:
    """What a kernel moves in a call; counters are those of one launch."""
    return (kernel.metrics.get(DRAM_READ, 0.0) + kernel.metrics.get(DRAM_WRITTEN, 0.0)) * max(
        1.0, kernel.launches
    )


def required_bytes(scene: DiagnosticContext) -> float:
    """Bytes that the task itself must read and write."""
    work = scene.profile.work
    fewest = work.get("read_bytes", 0.0) + work.get("written_bytes", 0.0)
    if fewest <= 0:
        raise MissingData("the fewest bytes of the task")
    return fewest


def excess_traffic(scene: DiagnosticContext) -> ExcessTraffic:
    scene.metric(DRAM_READ)
    moved = sum(map(dram_bytes, scene.profile.kernels))
    own = dram_bytes(scene.kernel) / moved if moved > 0 else 0.0
    return ExcessTraffic(moved, required_bytes(scene), own, min(1.0, scene.metric(DRAM_THROUGHPUT) / 100 / ATTAINABLE))


def dram_bandwidth(scene: DiagnosticContext) -> float:
    """The measured ceiling, bytes a second."""
    ceiling = scene.device.get("dram_bandwidth") or scene.profile.ceilings.get("bandwidth")
    if not ceiling:
        raise MissingData("the bandwidth of the device")
    return float(ceiling)
