"""One sandboxed process as the parent sees it: freeze, thaw, watch, kill.

A `SandboxedProcess` is a child with all its descendants. The parent freezes it with SIGSTOP from the moment
it has replied until the clock of its next call starts. Killing it kills every descendant, and leaves no
process and no file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from kernelpro.lab.sandbox import jail, procfs
from kernelpro.lab.sandbox.wire import Channel, ChannelClosed, ReplyTimeout

SCRATCH_BYTES = 2 << 30
MAX_PROCESSES = 256
"""In one sandbox; a compiler's pool of workers stays far below."""
START_SECONDS = 60.0
PROBE_ROLE = "probe"
"""The role of a child that only shows that it can start."""
_LOG_BYTES = 16 << 10
_FREEZE_SECONDS = 2.0


class CannotStart(RuntimeError):
    """A child could not be started at this level; the message says why."""


@dataclass(frozen=True)
class ResourceLimits:
    memory_bytes: int
    address_space: bool
    """Whether memory is also limited at allocation; not with CUDA, which reserves address space freely."""


class SandboxedProcess:
    """One child with its descendants."""

    def __init__(
        self,
        channel: Channel,
        log: int,
        status: int,
        scratch: Path,
        level: str,
        limits: ResourceLimits | None,
        shared_inodes: frozenset[int],
    ):
        """`lent`: inodes of what the parent shares with it."""
        self.channel, self.level = channel, level
        self._scratch, self._limits, self._shared_inodes = scratch, limits, shared_inodes
        self._status = os.fdopen(status, "r")
        self._log = bytearray()
        self.limit_exceeded = ""
        """Set by the watch when the cell was killed for taking too much."""
        self._wait_status: int | None = None
        self._closing = threading.Event()
        self._drain = threading.Thread(target=self._drain_log, args=(log,), daemon=True)
        self._drain.start()
        first = self._status.readline().split()
        if len(first) != 3 or first[0] != "pid":
            self._clean_up()
            raise CannotStart(" ".join(first[1:]) or "the child died at its start")
        self.pid, self._guard_pid = int(first[1]), int(first[2])
        try:
            self.channel.receive(START_SECONDS)
        except (ChannelClosed, ReplyTimeout):
            reason = self.log_tail().strip().splitlines()
            self.kill()
            raise CannotStart(reason[-1] if reason else "the child did not answer") from None
        self._watch = threading.Thread(target=self._watch_limits, daemon=True)
        if limits:
            self._watch.start()

    def _drain_log(self, log: int) -> None:
        """Read what the child prints, keep the end."""
        with os.fdopen(log, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                self._log += data
                del self._log[:-_LOG_BYTES]

    def _watch_limits(self) -> None:
        assert self._limits
        for beat in itertools.count():
            if self._closing.wait(0.1):
                return
            family = self.process_tree()
            seldom = beat % 10 == 9
            if len(family) > MAX_PROCESSES:
                self.limit_exceeded = f"started more than {MAX_PROCESSES} processes"
            elif (held := self._memory(family, seldom)) > self._limits.memory_bytes:
                self.limit_exceeded = f"took {held / 2**30:.1f} GiB of memory; {self._limits.memory_bytes / 2**30:.1f} GiB are allowed"
            elif (
                self.level != "namespaces"
                and seldom
                and procfs.disk_usage_bytes(self._scratch) > SCRATCH_BYTES
            ):
                self.limit_exceeded = f"wrote more than {SCRATCH_BYTES / 2**30:.0f} GiB"  # there only files by themselves are limited
            if self.limit_exceeded:
                self._kill_all()
                return

    def _memory(self, family: list[int], thoroughly: bool) -> int:
        """Resident bytes; where their plain sum is too much, pages that several processes share count once. `thoroughly`: with
        files in memory that nobody has mapped.

        That takes long while a fork bomb goes off, whose processes hold their memory's lock: then the watch goes back to counting.
        """
        assert self._limits
        unmapped = procfs.memfd_bytes(family, self._shared_inodes) if thoroughly else 0
        resident = sum(map(procfs.resident_bytes, family))
        if unmapped + resident <= self._limits.memory_bytes:
            return unmapped + resident
        held, counted = unmapped, time.monotonic()
        for pid in family:
            held += procfs.proportional_bytes(pid)
            if time.monotonic() - counted > 0.1:
                if len(self.process_tree()) > MAX_PROCESSES:
                    break
                counted = time.monotonic()
        return held

    def process_tree(self) -> list[int]:
        """The child and all its living descendants; of too many, some: a fork bomb leaves no time to count."""
        found, queue = {self.pid: None}, [self.pid, self._guard_pid]
        while queue and len(found) <= MAX_PROCESSES:
            new = [child for child in procfs.child_pids(queue.pop()) if child not in found]
            found |= dict.fromkeys(new)
            queue += new
        return list(found)

    def freeze_main(self) -> None:
        """Stop the child itself, at once."""
        procfs.send_signal(self.pid, signal.SIGSTOP)

    def stop_without_waiting(self) -> int:
        """Stop the child and everything it started, and do not wait for it; returns how many they are."""
        family = self.process_tree()
        for pid in family:
            procfs.send_signal(pid, signal.SIGSTOP)
        return len(family)

    def freeze(self) -> bool:
        """Stop the child and everything it started; returns when all threads of all of them stand still, or that they do not.

        A thread inside the kernel stops when it leaves it, which may take seconds (for gigabytes of memory), and so long it keeps a
        core busy; a process that is dying is not stopped at all, and its end may wake another.
        """
        self.freeze_main()
        deadline = time.monotonic() + _FREEZE_SECONDS
        while time.monotonic() < deadline:
            family = self.process_tree()
            for pid in (moving := list(filter(procfs.is_running, family))):
                procfs.send_signal(pid, signal.SIGSTOP)
            if not moving and set(self.process_tree()) <= set(family):  # none was started while we looked
                return True
            time.sleep(0)
        return False

    def cpu_time_ms(self) -> float:
        """CPU time of everything in the cell so far: while all stands still, this does too."""
        return sum(map(procfs.cpu_time_ms, self.process_tree()))

    def pin_threads(self) -> None:
        """While frozen: the child's first thread on one core, each thread that waits behind it on another.

        Threads that wake together may land on one core and stay there for milliseconds, which doubles a short call. The first
        thread gets all cores back by `release`, so that threads which it starts later are not bound to its core.
        """
        cores = sorted(os.sched_getaffinity(0))
        others = sorted(set(procfs.thread_ids(self.pid)) - {self.pid})
        procfs.set_affinity(self.pid, {cores[0]})
        for index, thread in enumerate(others if len(cores) > 1 else ()):
            procfs.set_affinity(thread, {cores[1 + index % (len(cores) - 1)]})

    def unpin_main_thread(self) -> None:
        """After `thaw`."""
        procfs.set_affinity(self.pid, os.sched_getaffinity(0))

    def thaw(self) -> None:
        """Let the child go on. What else it started stays frozen: a call is the work of one process."""
        procfs.send_signal(self.pid, signal.SIGCONT)

    def kill_descendants(self) -> None:
        """Kill whatever else the child has started, and only that."""
        for pid in self.process_tree():
            if pid != self.pid:
                procfs.send_signal(pid, signal.SIGKILL)

    def peak_bytes(self) -> int:
        """The most host memory the child has held."""
        return procfs.status_kib(self.pid, "VmHWM") * 1024

    def log_tail(self, characters: int = 2000) -> str:
        return bytes(self._log[-characters:]).decode(errors="replace")

    def describe_exit(self) -> str:
        """In words; waits a moment for the guard's report."""
        self._read_wait_status(2.0)
        if self.limit_exceeded:
            return self.limit_exceeded
        if self._wait_status is None:
            return "ended without a word"
        if os.WIFSIGNALED(self._wait_status):
            number = os.WTERMSIG(self._wait_status)
            return f"killed by {signal.Signals(number).name} ({signal.strsignal(number)})"
        return f"ended by itself with exit code {os.WEXITSTATUS(self._wait_status)}"

    def has_ended(self) -> bool:
        return not procfs.alive(self.pid)

    def _read_wait_status(self, seconds: float) -> None:
        if self._wait_status is not None or self._status.closed:
            return
        os.set_blocking(self._status.fileno(), False)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line = self._status.readline()
            if line.startswith("exit "):
                self._wait_status = int(line.split()[1])
                return
            if not procfs.alive(self._guard_pid):
                return
            time.sleep(0.002)

    def _kill_all(self) -> None:
        """Kill everything: PID 1 of a namespace takes all with it; elsewhere stop all, then kill all, until none is left."""
        if self.level == "namespaces":
            procfs.send_signal(self.pid, signal.SIGKILL)
            return
        for _ in range(100):
            family = self.process_tree()
            for pid in family:
                procfs.send_signal(pid, signal.SIGSTOP)
            for pid in family:
                procfs.send_signal(pid, signal.SIGKILL)
            if family == [self.pid]:
                break

    def kill(self) -> None:
        """End the cell and remove all traces of it."""
        self._closing.set()
        self._kill_all()
        self._read_wait_status(10.0)
        deadline = time.monotonic() + 2.0
        while procfs.alive(self._guard_pid) and time.monotonic() < deadline:
            time.sleep(0.001)  # it reaps the rest
        procfs.send_signal(self._guard_pid, signal.SIGKILL)
        if self._watch_started():
            self._watch.join()
        self._clean_up()

    def _watch_started(self) -> bool:
        watch = getattr(self, "_watch", None)
        return watch is not None and watch.ident is not None and watch is not threading.current_thread()

    def _clean_up(self) -> None:
        self._closing.set()
        self.channel.close()
        self._drain.join(timeout=5)
        with contextlib.suppress(OSError):
            self._status.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def harden_parent() -> None:
    """No other process of this user may read or trace the process that knows the answers."""
    with contextlib.suppress(jail.JailError):
        jail.prctl(jail.PR_SET_DUMPABLE, 0)
