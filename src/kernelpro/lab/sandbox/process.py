"""One sandboxed process as the parent sees it: freeze, thaw, monitor, kill.

A `SandboxedProcess` is a child with all its descendants. The parent keeps it stopped (SIGSTOP) from its reply
until the clock of its next call starts. Killing it kills every descendant, and leaves no process and no file
behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelpro.lab.sandbox import jail, procfs
from kernelpro.lab.sandbox.compilation import TimeLimits, is_compiling
from kernelpro.lab.sandbox.wire import Channel, ChannelClosed, ReplyTimeout

SCRATCH_BYTES = 2 << 30
MAX_PROCESSES = 256
"""Most processes in one sandbox. The worker pools of compilers are far smaller."""
START_SECONDS = 60.0
PROBE_ROLE = "probe"
"""The role of a child that only tests whether a sandbox can start."""
_LOG_BYTES = 16 << 10
_FREEZE_SECONDS = 2.0


class CannotStart(RuntimeError):
    """A sandboxed process could not be started; the message says why."""


@dataclass(frozen=True)
class ResourceLimits:
    """The resources that one sandbox may use."""

    memory_bytes: int
    address_space: bool
    """Whether RLIMIT_AS applies too; not with CUDA, which reserves far more address space than it uses."""


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
        """`shared_inodes`: inodes of the memory that the parent shares with the child."""
        self.channel, self.level = channel, level
        self._scratch, self._limits, self._shared_inodes = scratch, limits, shared_inodes
        self._status = os.fdopen(status, "r")
        self._log = bytearray()
        self.limit_exceeded = ""
        """The exceeded limit for which the sandbox was killed; empty if none."""
        self._thread_cpu_ns: dict[int, int] = {}
        """CPU time of each thread when threads were last bound to cores."""
        self.compile_seconds = 0.0
        """Seconds that the parent has waited for compilers in the sandbox."""
        self._wait_status: int | None = None
        self._closing, self._paused = threading.Event(), threading.Event()
        self._stopped = set[int]()
        """The processes that `pause` has stopped."""
        self._log_thread = threading.Thread(target=self._drain_log, args=(log,), daemon=True)
        self._log_thread.start()
        first = self._status.readline().split()
        if len(first) != 3 or first[0] != "pid":
            self._clean_up()
            raise CannotStart(" ".join(first[1:]) or "the child died while starting")
        self.pid, self._guard_pid = int(first[1]), int(first[2])
        try:
            self.channel.receive(START_SECONDS)
        except (ChannelClosed, ReplyTimeout):
            log_lines = self.log_tail().strip().splitlines()
            self.kill()
            raise CannotStart(log_lines[-1] if log_lines else "the child did not reply") from None
        self._limit_thread = threading.Thread(target=self._enforce_limits, daemon=True)
        if limits:
            self._limit_thread.start()

    def _drain_log(self, log: int) -> None:
        """Read the child's output, and keep its end."""
        with os.fdopen(log, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                self._log += data
                del self._log[:-_LOG_BYTES]

    def _enforce_limits(self) -> None:
        """Kill the sandbox when it exceeds a limit; expensive checks are made every second."""
        assert self._limits
        for tick in itertools.count():
            if self._closing.wait(0.1):
                return
            if self._paused.is_set():
                continue
            pids = self._bounded_tree()
            thorough = tick % 10 == 9
            if not self.limit_exceeded and (used := self._memory(pids, thorough)) > self._limits.memory_bytes:
                used_gib, limit_gib = used / 2**30, self._limits.memory_bytes / 2**30
                self.limit_exceeded = f"used {used_gib:.1f} GiB of memory; {limit_gib:.1f} GiB are allowed"
            # without namespaces the size of each file is limited, but not their sum
            elif (
                self.level != "namespaces"
                and thorough
                and procfs.disk_usage_bytes(self._scratch) > SCRATCH_BYTES
            ):
                self.limit_exceeded = f"wrote more than {SCRATCH_BYTES / 2**30:.0f} GiB"
            if self.limit_exceeded:
                self._kill_all()
                return

    def _memory(self, pids: list[int], thorough: bool) -> int:
        """Resident bytes of all processes. If their sum exceeds the limit, pages that several processes share
        count once.

        `thorough`: include memfd files that no process has mapped. During a fork bomb, proportional sizes
        take long to read, because its processes hold their memory's lock. So the number of processes is
        checked again meanwhile.
        """
        assert self._limits
        unmapped = procfs.memfd_bytes(pids, self._shared_inodes) if thorough else 0
        resident = sum(map(procfs.resident_bytes, pids))
        if unmapped + resident <= self._limits.memory_bytes:
            return unmapped + resident
        used, counted = unmapped, time.monotonic()
        for pid in pids:
            used += procfs.proportional_bytes(pid)
            if time.monotonic() - counted > 0.1:
                if len(self.process_tree()) > MAX_PROCESSES:
                    break
                counted = time.monotonic()
        return used

    def process_tree(self) -> list[int]:
        """PIDs of the child and all its living descendants; incomplete beyond MAX_PROCESSES (a fork bomb)."""
        pids, queue = {self.pid: None}, [self.pid, self._guard_pid]
        while queue and len(pids) <= MAX_PROCESSES:
            new = [child for child in procfs.child_pids(queue.pop()) if child not in pids]
            pids |= dict.fromkeys(new)
            queue += new
        return list(pids)

    def _bounded_tree(self) -> list[int]:
        """The process tree. Kills a sandbox that exceeds the limit on processes.

        A caller that waits for a reply checks this, too, in addition to the thread that enforces limits: that
        thread needs seconds to sum the memory of a fork bomb, which doubles meanwhile and then takes as long
        to kill.
        """
        pids = self.process_tree()
        if self._limits and len(pids) > MAX_PROCESSES:
            self.limit_exceeded = self.limit_exceeded or f"started more than {MAX_PROCESSES} processes"
            self._kill_all()
        return pids

    def receive(
        self, seconds: float, compile_seconds: float, device_is_busy: Callable[[], bool] = lambda: False
    ) -> tuple[dict[str, Any], bytes]:
        """The next message, with separate time limits for running and compiling (compilation.py).

        Raises TimeLimitExceeded, and everything that Channel.receive raises.
        """
        limits = TimeLimits(seconds, compile_seconds)
        limits.wait(
            self.channel.has_data,
            lambda: not device_is_busy() and is_compiling(self._bounded_tree()),
            self._paused.is_set,
        )
        self.compile_seconds += limits.compile_seconds
        return self.channel.receive(seconds)

    def freeze_main(self) -> None:
        """Stop the child but not its descendants, without waiting."""
        procfs.send_signal(self.pid, signal.SIGSTOP)

    def stop_without_waiting(self) -> int:
        """Stop the child and its descendants, without waiting. Returns the number of processes."""
        pids = self.process_tree()
        for pid in pids:
            procfs.send_signal(pid, signal.SIGSTOP)
        return len(pids)

    def freeze(self) -> bool:
        """Stop the child and its descendants; returns whether all their threads have stopped.

        A thread in a system call stops only when the call returns, which may take seconds (for gigabytes of
        memory). Until then it keeps a core busy. A dying process does not stop at all, and its end may wake
        another.
        """
        self.freeze_main()
        deadline = time.monotonic() + _FREEZE_SECONDS
        while time.monotonic() < deadline:
            pids = self.process_tree()
            for pid in (running := list(filter(procfs.is_running, pids))):
                procfs.send_signal(pid, signal.SIGSTOP)
            if not running and set(self.process_tree()) <= set(pids):  # none was started meanwhile
                return True
            time.sleep(0)
        return False

    def pause(self) -> None:
        """Stop the child and its descendants until `resume`. Time limits do not run meanwhile, and other
        limits are not checked. For builds: `freeze` makes sure that a candidate has stopped."""
        self._paused.set()
        self.freeze_main()
        while new := set(self.process_tree()) - self._stopped:
            for pid in new:
                procfs.send_signal(pid, signal.SIGSTOP)
            self._stopped |= new

    def resume(self) -> None:
        """Let paused processes continue."""
        while self._stopped:
            procfs.send_signal(self._stopped.pop(), signal.SIGCONT)
        self._paused.clear()

    def cpu_time_ms(self) -> float:
        """CPU time of the child and its descendants so far. It is constant while all are stopped."""
        return sum(map(procfs.cpu_time_ms, self.process_tree()))

    def pin_threads(self) -> None:
        """While the child is frozen: bind the threads that worked most since the last time to one core each,
        the main thread to the first, and spread the rest over the other cores.

        Threads that wake together may land on one core and stay there for milliseconds, which doubles the
        time of a short call. `unpin_main_thread` allows the main thread all cores again, so that threads
        which it starts later are not bound to its core. If it only waits for a thread on every core, one of
        them shares its core.
        """
        cores = sorted(os.sched_getaffinity(0))
        used = {thread: procfs.thread_cpu_ns(self.pid, thread) for thread in procfs.thread_ids(self.pid)}
        for thread, core in place_threads(self.pid, used, self._thread_cpu_ns, cores).items():
            procfs.set_affinity(thread, {core})
        self._thread_cpu_ns = used

    def unpin_main_thread(self) -> None:
        """Let the main thread run on all cores again; after `thaw`."""
        procfs.set_affinity(self.pid, os.sched_getaffinity(0))

    def thaw(self) -> None:
        """Let the child continue. Its descendants stay frozen: only one process may work on a call."""
        procfs.send_signal(self.pid, signal.SIGCONT)

    def kill_descendants(self) -> None:
        """Kill the child's descendants, but not the child."""
        for pid in self.process_tree():
            if pid != self.pid:
                procfs.send_signal(pid, signal.SIGKILL)

    def peak_bytes(self) -> int:
        """The child's peak resident host memory."""
        return procfs.status_kib(self.pid, "VmHWM") * 1024

    def log_tail(self, characters: int = 2000) -> str:
        """The end of the child's output."""
        return bytes(self._log[-characters:]).decode(errors="replace")

    def describe_exit(self) -> str:
        """How the child ended, in words; waits up to two seconds for the guard's report."""
        self._read_wait_status(2.0)
        if self.limit_exceeded:
            return self.limit_exceeded
        if self._wait_status is None:
            return "ended for an unknown reason"
        if os.WIFSIGNALED(self._wait_status):
            number = os.WTERMSIG(self._wait_status)
            return f"was killed by {signal.Signals(number).name} ({signal.strsignal(number)})"
        return f"exited with code {os.WEXITSTATUS(self._wait_status)}"

    def has_ended(self) -> bool:
        """Whether the child is no longer alive."""
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
        """Kill all processes. In a namespace, the end of PID 1 ends all others; elsewhere, stop and kill
        until none is left.

        First, send one signal to the child's process group and one to each known descendant: PID 1 of a fork
        bomb gets a core only after seconds, while its descendants multiply.
        """
        procfs.send_group_signal(self.pid, signal.SIGKILL)
        if self.level == "namespaces":
            for pid in self.process_tree():
                procfs.send_signal(pid, signal.SIGKILL)
            return
        for _ in range(100):
            pids = self.process_tree()
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    procfs.send_signal(pid, number)
            if pids == [self.pid]:
                break

    def kill(self) -> None:
        """Kill the child and its descendants, and remove their files."""
        self._closing.set()
        self._kill_all()
        self._read_wait_status(10.0)
        deadline = time.monotonic() + 2.0
        while procfs.alive(self._guard_pid) and time.monotonic() < deadline:
            time.sleep(0.001)  # the guard reaps the descendants
        procfs.send_signal(self._guard_pid, signal.SIGKILL)
        if self._limit_thread_runs():
            self._limit_thread.join()
        self._clean_up()

    def _limit_thread_runs(self) -> bool:
        thread = getattr(self, "_limit_thread", None)
        return thread is not None and thread.ident is not None and thread is not threading.current_thread()

    def _clean_up(self) -> None:
        self._closing.set()
        self.channel.close()
        self._log_thread.join(timeout=5)
        with contextlib.suppress(OSError):
            self._status.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def place_threads(
    main: int, used: dict[int, int], before: dict[int, int], cores: list[int]
) -> dict[int, int]:
    """A core for each thread. `used`, `before`: CPU time of each thread, now and the last time."""
    order = sorted(used, key=lambda thread: (before.get(thread, 0) - used[thread], thread != main, thread))
    busiest, rest = order[: len(cores)], sorted(order[len(cores) :])
    workers = [thread for thread in busiest if thread != main]
    places = dict(zip(workers, cores[1:] if main in busiest else cores[1:] + cores[:1], strict=False))
    places |= {
        thread: (cores[1:] or cores)[index % max(1, len(cores) - 1)] for index, thread in enumerate(rest)
    }
    return places | {main: cores[0]}


def harden_parent() -> None:
    """Prevent other processes of this user from reading or tracing this process, which knows the right
    outputs."""
    with contextlib.suppress(jail.JailError):
        jail.prctl(jail.PR_SET_DUMPABLE, 0)
