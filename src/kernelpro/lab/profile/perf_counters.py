"""Hardware counters of this process and all its threads, through perf_event_open, like `perf stat`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from kernelpro.records import Skipped

EVENTS = {
    "cycles": 0,
    "instructions": 1,
    "cache_references": 2,
    "cache_misses": 3,
    "branches": 4,
    "branch_misses": 5,
}
"""PERF_COUNT_HW_* by name."""
_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241}
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_READ_TIMES = 3
"""read_format: also read how long a counter was enabled and counted, because counters are multiplexed."""
_ENABLE, _DISABLE = 0x2400, 0x2401
_ENABLE_HINT = "sudo sysctl kernel.perf_event_paranoid=2 (or lower); in a container also --cap-add PERFMON"


class PerfCounters:
    """Counts while `running`. `values` are sums over threads; `skipped` says why there are none."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.skipped: Skipped | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count until the block ends."""
        descriptors: dict[str, list[int]] = {}
        threads = [int(name) for name in os.listdir("/proc/self/task")]
        for name, config in EVENTS.items():
            for thread in threads:
                descriptor = self._open(config, thread)
                if descriptor >= 0:
                    descriptors.setdefault(name, []).append(descriptor)
        libc = ctypes.CDLL(None, use_errno=True)
        for descriptor in (d for group in descriptors.values() for d in group):
            libc.ioctl(descriptor, _ENABLE, 0)
        try:
            yield
        finally:
            for name, group in descriptors.items():
                for descriptor in group:
                    libc.ioctl(descriptor, _DISABLE, 0)
                    value, enabled, counted = struct.unpack("QQQ", os.read(descriptor, 24))
                    self.values[name] = self.values.get(name, 0.0) + (
                        value * enabled / counted if counted else 0.0
                    )
                    os.close(descriptor)
        if descriptors:
            self.skipped = None

    def _open(self, config: int, thread: int) -> int:
        number = _SYSCALL_NUMBERS.get(platform.machine())
        if number is None:
            self.skipped = Skipped(
                "hardware counters", f"perf_event_open is not supported on {platform.machine()}"
            )
            return -1
        flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
        attributes = struct.pack("IIQQQQQIIQ", 0, 64, config, 0, 0, _READ_TIMES, flags, 0, 0, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.syscall(number, ctypes.c_char_p(attributes), thread, -1, -1, 0)
        if descriptor < 0:
            code = ctypes.get_errno()
            if code in (errno.EACCES, errno.EPERM, errno.ENOSYS):
                self.skipped = Skipped(
                    "hardware counters",
                    f"the kernel denies perf_event_open ({os.strerror(code)})",
                    _ENABLE_HINT,
                )
            else:
                why = f"this machine has none ({os.strerror(code)}), as is common for virtual machines"
                self.skipped = Skipped(
                    "hardware counters", why, "run on bare metal, or enable the virtual PMU"
                )
        return int(descriptor)
