"""Cells: children in confinement, as the parent sees them. Start, freeze, thaw, watch, kill.

`Nursery` owns the zygote (zygote.py) and asks it for children; a `Cell` is one of them with all that
descends from it. A cell is frozen with SIGSTOP from the moment it has answered until the moment the
clock of its next call starts. Killing it kills everything in it, and leaves no process and no file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from kernelpro.lab.languages import cute
from kernelpro.lab.sandbox import jail, processes
from kernelpro.lab.sandbox.wire import Channel, Gone, Late

LEVELS = ("namespaces", "landlock", "process")
_KEEP = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "LANG",
    "LC_ALL",
    "CC",
    "CXX",
    "CUDAHOSTCXX",
    "OMP_NUM_THREADS",
)
_KEEP_CUDA = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_CUDA_ARCH_LIST",
    "KERNELPRO_CUTLASS",
    "KERNELPRO_CUDA_ARCH",
)
_OWN = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "ONEDNN_JIT_PROFILE": "0",
    "MIMALLOC_PURGE_DELAY": "-1",
}
"""torch.compile's headers, compiled beforehand, would lie in a cell's own /tmp and be made again in each, which takes seconds.
oneDNN would leave a list of what it compiled in /tmp. torch's allocator on ARM gives memory back that has not been used for 10 ms,
and some judged calls are further apart than that: their temporaries would be mapped anew, which takes up to three times as long as
the call itself does in a program that makes one after the other."""
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "passwd",
    "group",
    "nsswitch.conf",
    "localtime",
    "os-release",
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "tty")
_SCRATCH_BYTES = 2 << 30
_FILE_BYTES = 1 << 30
MOST_PROCESSES = 256
"""In one cell; a compiler's pool of workers stays far below."""
_LOG_BYTES = 16 << 10
_START_SECONDS = 60.0
_STILL_SECONDS = 2.0


class CannotStart(RuntimeError):
    """A child could not be started at this level; the message says why."""


@dataclass(frozen=True)
class Limits:
    memory_bytes: int
    address_space: bool
    """Whether memory is also limited at allocation; not with CUDA, which reserves address space freely."""


def readable_paths() -> list[str]:
    """What a kernel may read: the system's programs and libraries, Python, torch, the CUDA and CUTLASS trees, KernelPro."""
    paths = {"/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt", "/nix", "/proc", "/sys", "/dev"}
    paths |= {f"/etc/{name}" for name in _ETC}
    paths |= {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    paths |= {str(Path(__file__).resolve().parents[3])}
    paths |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    if (
        found := importlib.util.find_spec("torch")
    ) and found.origin:  # where installers link instead of copying
        paths.add(str(Path(found.origin).resolve().parents[1]))
    for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        paths |= set(filter(None, os.environ.get(name, "").split(":")))
    if tree := cute.tree():
        paths.add(str(tree))
    return sorted({os.path.realpath(path) for path in paths} | paths)


def writable_paths() -> list[str]:
    """Devices: the harmless ones and the GPU's."""
    return [f"/dev/{name}" for name in _DEVICES] + [str(path) for path in Path("/dev").glob("nvidia*")]


def clean_environment() -> dict[str, str]:
    """What a child may know of the environment: toolchains, no keys."""
    return {name: os.environ[name] for name in _KEEP + _KEEP_CUDA if name in os.environ} | _OWN


class SandboxLauncher:
    """The zygote and what it takes to ask it for children."""

    def __init__(self, level: str = "auto"):
        self._folder = tempfile.TemporaryDirectory(prefix="kernelpro-cells-")
        self._seed = f"{self._folder.name}/triton"
        """What the zygote compiled of Triton itself; every cell starts with a copy."""
        self._lock = threading.Lock()
        self._count = 0
        self._wanted = level
        self._choice: tuple[str, str] | None = None
        self._ready = False
        self._spawn_zygote()

    @property
    def level(self) -> str:
        """The strongest level that works here."""
        return self._chosen()[0]

    @property
    def why_not_better(self) -> str:
        return self._chosen()[1]

    def _chosen(self) -> tuple[str, str]:
        if self._choice is None:
            self._choice = self._choose(self._wanted)
        return self._choice

    def _spawn_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = clean_environment() | {
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
            "TRITON_CACHE_DIR": self._seed,
        }
        command = [sys.executable, "-m", "kernelpro.lab.sandbox.zygote", str(theirs.fileno())]
        self._zygote = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=self._folder.name,
        )
        theirs.close()
        self._requests, self._ready = ours, False

    def _await_zygote(self) -> None:
        """Wait until the zygote has imported torch; start another where it has died."""
        if self._ready and self._zygote.poll() is not None:
            self._spawn_zygote()
        if self._ready:
            return
        self._requests.settimeout(_START_SECONDS)
        try:
            if self._requests.recv(16) != b"ready":
                raise CannotStart("the process that starts children died; see its message above")
        except TimeoutError:
            raise CannotStart(
                f"the process that starts children was not ready within {_START_SECONDS:.0f} s"
            ) from None
        self._requests.settimeout(None)
        self._ready = True

    def _choose(self, wanted: str) -> tuple[str, str]:
        """The strongest level that works here, found by trying; and why a stronger one does not."""
        levels = LEVELS if wanted == "auto" else (wanted,)
        reasons = []
        for level in levels:
            try:
                cell = self.start("probe", level=level)
            except CannotStart as error:
                reasons.append(f"{level}: {error}")
                continue
            cell.kill()
            return level, "; ".join(reasons)
        raise CannotStart(f"sandbox level {wanted} does not work here ({'; '.join(reasons)})")

    def start(
        self,
        role: str,
        limits: Limits | None = None,
        shared: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
        level: str | None = None,
        trusted: list[str] | None = None,
        allow: tuple[str, ...] = (),
        own_tmp: bool = False,
        modules: tuple[str, ...] = (),
    ) -> SandboxedProcess:
        """A new child in its own cell, ready for requests.

        With `trusted`, it may read everything and write below these paths: the same walls, so that both
        sides of a timing pay the same for them, but with doors. `allow` opens system calls that profilers need;
        with `own_tmp` they may write to a /tmp of their own (in namespaces). `modules` are imported once, before the fork, for all
        children that come.
        """
        with self._lock:
            self._await_zygote()
            self._count += 1
            scratch = Path(self._folder.name) / f"cell-{self._count}"
            scratch.mkdir()
        level = level or self.level
        home = str(scratch)
        own = {
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "XDG_CACHE_HOME": f"{home}/cache",
            "TRITON_CACHE_DIR": f"{home}/triton",
        }
        own |= {"TORCH_EXTENSIONS_DIR": f"{home}/extensions", "KERNELPRO_BUILD_DIR": f"{home}/builds"}
        request = {
            "role": role,
            "level": level,
            "scratch": str(scratch),
            "allow": allow,
            "own_tmp": own_tmp,
            "modules": modules,
            "seed": self._seed if trusted is None else "",
            "env": clean_environment() | own | (environment or {}),
            "readable": readable_paths() if trusted is None else ["/"],
            "writable": writable_paths() + (trusted or []),
            "scratch_bytes": min(_SCRATCH_BYTES, limits.memory_bytes // 4)
            if limits
            else _SCRATCH_BYTES,  # it lies in memory
            "file_bytes": _FILE_BYTES,
            "processes": 2 * MOST_PROCESSES,
            "memory_bytes": limits.memory_bytes if limits and limits.address_space else None,
        }
        control, theirs = socket.socketpair()
        log_read, log_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            with self._lock:
                fds = [theirs.fileno(), log_write, status_write, *shared]
                socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
        finally:
            theirs.close()
            os.close(log_write)
            os.close(status_write)
        lent = frozenset(os.fstat(fd).st_ino for fd in shared)
        return SandboxedProcess(Channel(control), log_read, status_read, scratch, level, limits, lent)

    def close(self) -> None:
        self._zygote.kill()
        self._zygote.wait()
        self._requests.close()
        self._folder.cleanup()


class SandboxedProcess:
    """One child with its descendants."""

    def __init__(
        self,
        channel: Channel,
        log: int,
        status: int,
        scratch: Path,
        level: str,
        limits: Limits | None,
        lent: frozenset[int],
    ):
        """`lent`: inodes of what the parent shares with it."""
        self.channel, self.level = channel, level
        self._scratch, self._limits, self._lent = scratch, limits, lent
        self._status = os.fdopen(status, "r")
        self._log = bytearray()
        self.overrun = ""
        """Set by the watch when the cell was killed for taking too much."""
        self._ended: int | None = None
        self._closing = threading.Event()
        self._drain = threading.Thread(target=self._drain_log, args=(log,), daemon=True)
        self._drain.start()
        first = self._status.readline().split()
        if len(first) != 3 or first[0] != "pid":
            self._forget()
            raise CannotStart(" ".join(first[1:]) or "the child died at its start")
        self.pid, self._guard = int(first[1]), int(first[2])
        try:
            self.channel.receive(_START_SECONDS)
        except (Gone, Late):
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
            family = self.family()
            seldom = beat % 10 == 9
            if len(family) > MOST_PROCESSES:
                self.overrun = f"started more than {MOST_PROCESSES} processes"
            elif (held := self._memory(family, seldom)) > self._limits.memory_bytes:
                self.overrun = f"took {held / 2**30:.1f} GiB of memory; {self._limits.memory_bytes / 2**30:.1f} GiB are allowed"
            elif (
                self.level != "namespaces"
                and seldom
                and processes.stored_bytes(self._scratch) > _SCRATCH_BYTES
            ):
                self.overrun = f"wrote more than {_SCRATCH_BYTES / 2**30:.0f} GiB"  # there only files by themselves are limited
            if self.overrun:
                self._slay()
                return

    def _memory(self, family: list[int], thoroughly: bool) -> int:
        """Resident bytes; where their plain sum is too much, pages that several processes share count once. `thoroughly`: with
        files in memory that nobody has mapped.

        That takes long while a fork bomb goes off, whose processes hold their memory's lock: then the watch goes back to counting.
        """
        assert self._limits
        unmapped = processes.unmapped_bytes(family, self._lent) if thoroughly else 0
        resident = sum(map(processes.resident_bytes, family))
        if unmapped + resident <= self._limits.memory_bytes:
            return unmapped + resident
        held, counted = unmapped, time.monotonic()
        for pid in family:
            held += processes.proportional_bytes(pid)
            if time.monotonic() - counted > 0.1:
                if len(self.family()) > MOST_PROCESSES:
                    break
                counted = time.monotonic()
        return held

    def family(self) -> list[int]:
        """The child and all its living descendants; of too many, some: a fork bomb leaves no time to count."""
        found, queue = {self.pid: None}, [self.pid, self._guard]
        while queue and len(found) <= MOST_PROCESSES:
            new = [child for child in processes.children_of(queue.pop()) if child not in found]
            found |= dict.fromkeys(new)
            queue += new
        return list(found)

    def freeze_main(self) -> None:
        """Stop the child itself, at once."""
        processes.send(self.pid, signal.SIGSTOP)

    def halt(self) -> int:
        """Stop the child and everything it started, and do not wait for it; returns how many they are."""
        family = self.family()
        for pid in family:
            processes.send(pid, signal.SIGSTOP)
        return len(family)

    def freeze(self) -> bool:
        """Stop the child and everything it started; returns when all threads of all of them stand still, or that they do not.

        A thread inside the kernel stops when it leaves it, which may take seconds (for gigabytes of memory), and so long it keeps a
        core busy; a process that is dying is not stopped at all, and its end may wake another.
        """
        self.freeze_main()
        deadline = time.monotonic() + _STILL_SECONDS
        while time.monotonic() < deadline:
            family = self.family()
            for pid in (moving := list(filter(processes.moves, family))):
                processes.send(pid, signal.SIGSTOP)
            if not moving and set(self.family()) <= set(family):  # none was started while we looked
                return True
            time.sleep(0)
        return False

    def ran_ms(self) -> float:
        """CPU time of everything in the cell so far: while all stands still, this does too."""
        return sum(map(processes.ran_ms, self.family()))

    def spread(self) -> None:
        """While frozen: the child's first thread on one core, each thread that waits behind it on another.

        Threads that wake together may land on one core and stay there for milliseconds, which doubles a short call. The first
        thread gets all cores back by `release`, so that threads which it starts later are not bound to its core.
        """
        cores = sorted(os.sched_getaffinity(0))
        others = sorted(set(processes.threads_of(self.pid)) - {self.pid})
        processes.bind(self.pid, {cores[0]})
        for index, thread in enumerate(others if len(cores) > 1 else ()):
            processes.bind(thread, {cores[1 + index % (len(cores) - 1)]})

    def release(self) -> None:
        """After `thaw`."""
        processes.bind(self.pid, os.sched_getaffinity(0))

    def thaw(self) -> None:
        """Let the child go on. What else it started stays frozen: a call is the work of one process."""
        processes.send(self.pid, signal.SIGCONT)

    def leave_alone(self) -> None:
        """Kill whatever else the child has started, and only that."""
        for pid in self.family():
            if pid != self.pid:
                processes.send(pid, signal.SIGKILL)

    def peak_bytes(self) -> int:
        """The most host memory the child has held."""
        return processes.status_kib(self.pid, "VmHWM") * 1024

    def log_tail(self, characters: int = 2000) -> str:
        return bytes(self._log[-characters:]).decode(errors="replace")

    def how_it_ended(self) -> str:
        """In words; waits a moment for the guard's report."""
        self._collect(2.0)
        if self.overrun:
            return self.overrun
        if self._ended is None:
            return "ended without a word"
        if os.WIFSIGNALED(self._ended):
            number = os.WTERMSIG(self._ended)
            return f"killed by {signal.Signals(number).name} ({signal.strsignal(number)})"
        return f"ended by itself with exit code {os.WEXITSTATUS(self._ended)}"

    def has_ended(self) -> bool:
        return not processes.alive(self.pid)

    def _collect(self, seconds: float) -> None:
        if self._ended is not None or self._status.closed:
            return
        os.set_blocking(self._status.fileno(), False)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line = self._status.readline()
            if line.startswith("exit "):
                self._ended = int(line.split()[1])
                return
            if not processes.alive(self._guard):
                return
            time.sleep(0.002)

    def _slay(self) -> None:
        """Kill everything: PID 1 of a namespace takes all with it; elsewhere stop all, then kill all, until none is left."""
        if self.level == "namespaces":
            processes.send(self.pid, signal.SIGKILL)
            return
        for _ in range(100):
            family = self.family()
            for pid in family:
                processes.send(pid, signal.SIGSTOP)
            for pid in family:
                processes.send(pid, signal.SIGKILL)
            if family == [self.pid]:
                break

    def kill(self) -> None:
        """End the cell and remove all traces of it."""
        self._closing.set()
        self._slay()
        self._collect(10.0)
        deadline = time.monotonic() + 2.0
        while processes.alive(self._guard) and time.monotonic() < deadline:
            time.sleep(0.001)  # it reaps the rest
        processes.send(self._guard, signal.SIGKILL)
        if self._watch_started():
            self._watch.join()
        self._forget()

    def _watch_started(self) -> bool:
        watch = getattr(self, "_watch", None)
        return watch is not None and watch.ident is not None and watch is not threading.current_thread()

    def _forget(self) -> None:
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
