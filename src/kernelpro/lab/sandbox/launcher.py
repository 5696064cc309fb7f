"""Starts sandboxed processes through the zygote (zygote.py); defines what a child may read, write and know.

The launcher asks the zygote for children and returns each as a `SandboxedProcess` (process.py).
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from kernelpro.lab.languages import cute
from kernelpro.lab.sandbox import zygote
from kernelpro.lab.sandbox.launch_request import LaunchRequest, PreloadRequest
from kernelpro.lab.sandbox.process import (
    MAX_PROCESSES,
    PROBE_ROLE,
    SCRATCH_BYTES,
    START_SECONDS,
    CannotStart,
    ResourceLimits,
    SandboxedProcess,
)
from kernelpro.lab.sandbox.wire import Channel

LEVELS = ("namespaces", "landlock", "process")
_PASSED_VARIABLES = (
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
    "OMP_WAIT_POLICY",
)
_PASSED_CUDA_VARIABLES = (
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "TORCH_CUDA_ARCH_LIST",
    "KERNELPRO_CUTLASS",
    "KERNELPRO_CUDA_ARCH",
)
_FIXED_VARIABLES = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "ONEDNN_JIT_PROFILE": "0",
    "MIMALLOC_PURGE_DELAY": "-1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Reasons for these settings: torch.compile would precompile its headers into each sandbox's own
/tmp, which takes seconds. oneDNN would write a list of its compiled kernels to /tmp. torch's allocator on ARM
returns memory to the system after 10 ms without use, and some judged calls are further apart: mapping their
temporaries again takes up to three times as long as the call itself takes in a program that makes one call
after the other. glibc's allocator, elsewhere, returns freed memory at the end of its heap in some processes
and keeps it in others, by what happens to lie behind it: an RMS norm of torch's operators took 1.4 ms or 5.4
ms. The settings keep it, as glibc does in the better case. Allocations above 32 MB are still mapped anew for
each use."""
_READABLE_ETC = (
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
_WRITABLE_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "tty")
_FILE_BYTES = 1 << 30


def readable_paths() -> list[str]:
    """Paths that a child may read: system programs and libraries, Python, torch, CUDA, CUTLASS, KernelPro."""
    paths = {"/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt", "/nix", "/proc", "/sys", "/dev"}
    paths |= {f"/etc/{name}" for name in _READABLE_ETC}
    paths |= {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    paths |= {str(Path(__file__).resolve().parents[3])}
    paths |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    if (spec := importlib.util.find_spec("torch")) and spec.origin:  # some installers link instead of copying
        paths.add(str(Path(spec.origin).resolve().parents[1]))
    for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        paths |= set(filter(None, os.environ.get(name, "").split(":")))
    if tree := cute.cutlass_root():
        paths.add(str(tree))
    return sorted({os.path.realpath(path) for path in paths} | paths)


def writable_paths() -> list[str]:
    """Devices that a child may write to: harmless devices and GPUs."""
    return [f"/dev/{name}" for name in _WRITABLE_DEVICES] + [
        str(path) for path in Path("/dev").glob("nvidia*")
    ]


def clean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables of a child: those of toolchains, but no keys."""
    names = (name for name in _PASSED_VARIABLES + _PASSED_CUDA_VARIABLES if name in environment)
    return {name: environment[name] for name in names} | _FIXED_VARIABLES


class _Fork:
    """A forked process, with the methods of `subprocess.Popen` that the launcher uses."""

    def __init__(self, pid: int):
        self._pid = pid
        self._code: int | None = None

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        """The process's exit code, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, flags)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int | None:
        """Wait until the process has ended."""
        return self.poll(flags=0)


class _SecondZygote:
    """A fork of the zygote that imports additional modules."""

    def __init__(self, modules: tuple[str, ...], requests: socket.socket):
        self.modules, self.requests = modules, requests
        self.is_ready = False

    def has_died(self) -> bool:
        """Whether the process has ended. Also updates `is_ready`."""
        try:
            message = self.requests.recv(16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.is_ready = self.is_ready or message == b"ready"
        return not message


class SandboxLauncher:
    """Owns the zygote and asks it for children.

    With `fork`, the zygote is a fork of this process. This process must then have been started with
    `clean_environment`, and must not know a task or a secret yet. If the zygote dies, a new process always
    replaces it.
    """

    def __init__(self, level: str = "auto", fork: bool = False):
        self._folder = tempfile.TemporaryDirectory(prefix="kernelpro-sandbox-")
        self._triton_cache = f"{self._folder.name}/triton"
        """Triton's own compiled modules, which the zygote provides; every child starts with a copy."""
        self._lock = threading.Lock()
        self._count = 0
        self._requested_level = level
        self._choice: tuple[str, str] | None = None
        self._ready = False
        self._spawn_zygote(fork)

    @property
    def level(self) -> str:
        """The strongest level that works here."""
        return self._level_and_reason()[0]

    @property
    def why_not_stronger(self) -> str:
        """Why stronger levels do not work here; empty if this is the strongest or was requested."""
        return self._level_and_reason()[1]

    def _level_and_reason(self) -> tuple[str, str]:
        if self._choice is None:
            self._choice = self._find_level(self._requested_level)
        return self._choice

    def _spawn_zygote(self, fork: bool = False) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = clean_environment() | {
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
            "TRITON_CACHE_DIR": self._triton_cache,
        }
        command = [sys.executable, "-m", "kernelpro.lab.sandbox.zygote", str(theirs.fileno())]
        self._zygote: _Fork | subprocess.Popen[bytes]
        if fork:
            self._zygote = _Fork(zygote.fork(theirs.fileno(), environment, self._folder.name))
        else:
            self._zygote = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=self._folder.name,
            )
        theirs.close()
        self._requests, self._ready = ours, False
        self._second: _SecondZygote | None = None

    def _await_zygote(self) -> None:
        """Wait until the zygote has imported torch. Replace a zygote that has died."""
        if self._ready and self._zygote.poll() is not None:
            self._spawn_zygote()
        if self._ready:
            return
        self._requests.settimeout(START_SECONDS)
        try:
            if self._requests.recv(16) != b"ready":
                raise CannotStart("the process that starts sandboxes died; see its message above")
        except TimeoutError:
            raise CannotStart(
                f"the process that starts sandboxes was not ready within {START_SECONDS:.0f} s"
            ) from None
        self._requests.settimeout(None)
        self._ready = True

    def _find_level(self, requested: str) -> tuple[str, str]:
        """The strongest level with which a child can be started here, and why stronger levels fail."""
        levels = LEVELS if requested == "auto" else (requested,)
        reasons = []
        for level in levels:
            try:
                process = self.start(PROBE_ROLE, level=level)
            except CannotStart as error:
                reasons.append(f"{level}: {error}")
                continue
            process.kill()
            return level, "; ".join(reasons)
        raise CannotStart(f"sandbox level {requested} does not work here ({'; '.join(reasons)})")

    def preload(self, modules: tuple[str, ...]) -> None:
        """Let a second zygote import modules, in the background. When it is ready, it starts all children."""
        with self._lock:
            self._await_zygote()
            if self._second is None or self._second.modules != modules:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    socket.send_fds(self._requests, [PreloadRequest(modules).dumps()], [theirs.fileno()])
                if self._second:
                    self._second.requests.close()
                self._second = _SecondZygote(modules, ours)

    def _socket(self, preloaded: bool) -> socket.socket:
        """The socket for a launch request: the second zygote's if it is ready, or if `preloaded`."""
        if self._second and self._second.has_died():
            self._second.requests.close()
            self._second = None
        second = self._second
        return second.requests if second and (preloaded or second.is_ready) else self._requests

    def start(
        self,
        role: str,
        limits: ResourceLimits | None = None,
        shared_fds: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
        level: str | None = None,
        trusted_dirs: list[str] | None = None,
        allowed_syscalls: tuple[str, ...] = (),
        private_tmp: bool = False,
        preloaded: bool = False,
    ) -> SandboxedProcess:
        """Start a child in its own sandbox, ready for requests.

        `preloaded`: it waits for the modules of `preload`. With `trusted_dirs` the child may read everything
        and write below these paths. It is confined by the same mechanisms, so that they cost both sides of a
        timing the same, but with wider rights. LaunchRequest describes the other parameters.
        """
        with self._lock:
            self._await_zygote()
            self._count += 1
            scratch = Path(self._folder.name) / str(self._count)
            scratch.mkdir()
        level = level or self.level
        home = str(scratch)
        folders = {
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "XDG_CACHE_HOME": f"{home}/cache",
            "TRITON_CACHE_DIR": f"{home}/triton",
            "TORCH_EXTENSIONS_DIR": f"{home}/extensions",
            "KERNELPRO_BUILD_DIR": f"{home}/builds",
        }
        request = LaunchRequest(
            role,
            level,
            scratch=home,
            environment=clean_environment() | folders | (environment or {}),
            readable=readable_paths() if trusted_dirs is None else ["/"],
            writable=writable_paths() + (trusted_dirs or []),
            # the scratch folder is in memory
            scratch_bytes=min(SCRATCH_BYTES, limits.memory_bytes // 4) if limits else SCRATCH_BYTES,
            file_bytes=_FILE_BYTES,
            processes=2 * MAX_PROCESSES,
            memory_bytes=limits.memory_bytes if limits and limits.address_space else None,
            allowed_syscalls=allowed_syscalls,
            private_tmp=private_tmp,
            triton_cache=self._triton_cache if trusted_dirs is None else "",
        )
        control, theirs = socket.socketpair()
        log_read, log_write = os.pipe()
        status_read, status_write = os.pipe()
        try:
            with self._lock:
                fds = [theirs.fileno(), log_write, status_write, *shared_fds]
                socket.send_fds(self._socket(preloaded), [request.dumps()], fds)
        finally:
            theirs.close()
            os.close(log_write)
            os.close(status_write)
        shared_inodes = frozenset(os.fstat(fd).st_ino for fd in shared_fds)
        return SandboxedProcess(
            Channel(control), log_read, status_read, scratch, level, limits, shared_inodes
        )

    def close(self) -> None:
        """End the zygote and remove all scratch folders."""
        self._zygote.kill()
        self._zygote.wait()
        self._requests.close()
        if self._second:
            self._second.requests.close()
        self._folder.cleanup()
