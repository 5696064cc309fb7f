"""Other processes as Linux shows them: their state, their threads and children, what they hold, how long they
ran."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def send_signal(pid: int, number: int) -> None:
    assert pid > 1, "0 and below are whole groups of processes"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def state(pid: int) -> str:
    return read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1] or "X"


def is_running(pid: int) -> bool:
    """Whether a thread of it is not stopped, dead or gone."""
    return any(
        (read(f"/proc/{pid}/task/{t}/stat").rpartition(")")[2].strip()[:1] or "X") not in "TtZX"
        for t in thread_ids(pid)
    )


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def cpu_time_ms(pid: int) -> float:
    """CPU time of a process, all its threads together: what clock_getcpuclockid gives, which Python lacks."""
    try:
        return 1e3 * time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def thread_ids(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def set_affinity(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(OSError):  # gone, or not ours to move: it stays where it is
        os.sched_setaffinity(thread, cores)


def child_pids(pid: int) -> list[int]:
    return [
        int(child)
        for thread in thread_ids(pid)
        for child in read(f"/proc/{pid}/task/{thread}/children").split()
    ]


def status_kib(pid: int, field: str) -> int:
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def resident_bytes(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def memfd_bytes(family: list[int], known: frozenset[int]) -> int:
    """Of files without a name (memfd) that these hold open, whether mapped or not; they lie in memory."""
    found: dict[int, int] = {}
    for pid in family:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        about = os.stat(entry.path)
                        found[about.st_ino] = 512 * about.st_blocks
    return sum(size for inode, size in found.items() if inode not in known)


def disk_usage_bytes(folder: Path) -> int:
    """On disk, below a folder that others change meanwhile."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found += 512 * os.lstat(os.path.join(place, name)).st_blocks
    return found


def proportional_bytes(pid: int) -> int:
    for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
