"""Reads other processes' state, threads, children, memory and CPU time from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def send_signal(pid: int, number: int) -> None:
    """Send a signal; a process that has ended or belongs to another user is ignored."""
    assert pid > 1, "0 and below are whole groups of processes"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group_signal(group: int, number: int) -> None:
    """Send a signal to all processes of a group at once, where it still exists."""
    assert group > 1, "0 and 1 are the caller's own group and all processes"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def read(path: str) -> str:
    """A file's text; empty if it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def state(pid: int) -> str:
    """The state letter of a process; X if it is gone."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1] or "X"


def is_running(pid: int) -> bool:
    """Whether any thread of a process is neither stopped nor dead."""
    return any(
        (read(f"/proc/{pid}/task/{t}/stat").rpartition(")")[2].strip()[:1] or "X") not in "TtZX"
        for t in thread_ids(pid)
    )


def alive(pid: int) -> bool:
    """Whether a process has not ended."""
    return state(pid) not in "ZX"


def cpu_time_ms(pid: int) -> float:
    """CPU time of a process with all its threads, by the clock of clock_getcpuclockid, which Python lacks."""
    try:
        return 1e3 * time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def thread_cpu_ns(pid: int, thread: int) -> int:
    """CPU time of one thread; 0 if the kernel does not report it."""
    return int((read(f"/proc/{pid}/task/{thread}/schedstat").split() or ["0"])[0])


def thread_ids(pid: int) -> list[int]:
    """The threads of a process."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def thread_name(pid: int, thread: int) -> str:
    """The name of a thread; the first thread has the program's name."""
    return read(f"/proc/{pid}/task/{thread}/comm").strip()


def set_affinity(thread: int, cores: set[int]) -> None:
    """Restrict a thread to some cores, if that is possible."""
    with contextlib.suppress(OSError):  # the thread has ended, or belongs to another user
        os.sched_setaffinity(thread, cores)


def child_pids(pid: int) -> list[int]:
    """The children of a process."""
    return [
        int(child)
        for thread in thread_ids(pid)
        for child in read(f"/proc/{pid}/task/{thread}/children").split()
    ]


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    return [pid for child in child_pids(pid) for pid in (child, *descendants(child))]


def status_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/status in KiB; 0 if there is none."""
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0


def meminfo_kib(field: str) -> int:
    """A field of /proc/meminfo in KiB; 0 if there is none."""
    rows = (line.split() for line in read("/proc/meminfo").splitlines())
    return next((int(row[1]) for row in rows if row and row[0] == f"{field}:"), 0)


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def mapped_inode(pid: int, address: int) -> int:
    """The inode of the file that a process has mapped at an address; 0 if there is none."""
    for line in read(f"/proc/{pid}/maps").splitlines():
        span, _, _, _, inode = line.split()[:5]
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            return int(inode)
    return 0


def memfd_bytes(pids: list[int], shared_inodes: frozenset[int]) -> int:
    """Memory of open memfd files, mapped or not, except files that the parent shares."""
    sizes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        stat = os.stat(entry.path)
                        sizes[stat.st_ino] = 512 * stat.st_blocks
    return sum(size for inode, size in sizes.items() if inode not in shared_inodes)


def disk_usage_bytes(folder: Path) -> int:
    """Disk usage of a folder that other processes may change meanwhile."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += 512 * os.lstat(os.path.join(directory, name)).st_blocks
    return total


def proportional_bytes(pid: int) -> int:
    """The proportional set size of a process: shared pages are divided among their users."""
    for line in read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
