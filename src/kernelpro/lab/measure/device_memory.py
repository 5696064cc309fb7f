"""The memory of a device: how much is free, how much a call takes, and a limit that simulates a smaller one.

`KERNELPRO_MEMORY_GB` limits the free memory. On a GPU the judge allocates the rest itself, so that candidates
and baselines cannot use it either. On a CPU the variable limits the judge's plan and the candidate's sandbox.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelpro.lab import heap
from kernelpro.lab.measure.memory_plan import GB
from kernelpro.lab.sandbox import gpu, procfs
from kernelpro.records import BadInput, Target

LIMIT_VARIABLE = "KERNELPRO_MEMORY_GB"
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def limit_bytes() -> int | None:
    """The limit that the user has set with KERNELPRO_MEMORY_GB; None without one."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if limit <= 0:
        raise BadInput(f"{LIMIT_VARIABLE}={text}: give a number of gigabytes, such as 24")
    return int(limit * GB)


def free_bytes(target: Target, held: int = 0) -> int:
    """Bytes that this process and its children can allocate, plus `held` bytes that it has allocated. The
    unused cache of its allocator counts as free."""
    if target == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0]) + held
    heap.trim()
    free = host_bytes() + held
    limit = limit_bytes()
    return free if limit is None else min(limit, free)


def host_bytes() -> int:
    """Host memory that Linux can provide without swapping, within the control group's limit."""
    available = procfs.meminfo_kib("MemAvailable") * 1024 or (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    )
    for limit_file, usage_file in _CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
            left = int(Path(limit_file).read_text()) - int(Path(usage_file).read_text())
            available = min(available, max(0, left))
    return available


def avoid_fragmentation() -> None:
    """Let this process's allocator grow segments instead of splitting large blocks, because large tensors do
    not fit into split blocks. Children keep the default allocator: growing segments cannot be exported."""
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        configure = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # since 2.9
        (configure or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


class Ballast:
    """Allocates device memory so that no more than the user's limit is free; `close` frees it."""

    def __init__(self, target: Target):
        limit = limit_bytes() if target == "cuda" else None
        spare = 0 if limit is None else free_bytes(target) - limit
        spare -= spare % gpu.PAGE_BYTES
        self._pointer = gpu.allocate(spare) if spare > 0 else 0

    def close(self) -> None:
        """Free the memory."""
        if self._pointer:
            gpu.free(self._pointer)
        self._pointer = 0


class Peak:
    """Peak memory minus the memory in use at the start, in bytes."""

    nbytes = 0


@contextmanager
def measured_peak(target: Target) -> Iterator[Peak]:
    """Measure the peak memory of this block; 0 if the system does not report it."""
    peak = Peak()
    if target == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield peak
        peak.nbytes = torch.cuda.max_memory_allocated() - before
        return
    heap.trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        yield peak
        return
    before = procfs.status_kib(os.getpid(), "VmRSS") * 1024
    yield peak
    peak.nbytes = max(0, procfs.status_kib(os.getpid(), "VmHWM") * 1024 - before)
