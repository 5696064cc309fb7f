"""Distinguishes compiling from running, so that each has its own time limit.

A process compiles while a compiler is among its descendants, or while the Python stack of its main thread is
inside a just-in-time compiler. The parent can see the first from outside. For the second, a thread in the
process inspects the stack and reports the result by its own thread name. A candidate can forge both, but only
gains the time limit of compilers instead of that of calls. A busy GPU overrides both: it runs a kernel.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from kernelpro.lab.sandbox import procfs

_COMPILERS = frozenset(
    ("ninja", "make", "cmake", "nvcc", "cudafe++", "cicc", "ptxas", "fatbinary", "nvlink")
    + ("c++", "g++", "gcc", "clang", "clang++", "cc1", "cc1plus", "lto1", "lto-wrapper", "as", "collect2")
    + ("ld", "ld.bfd", "ld.gold", "ld.lld")
)
_COMPILER_FILES = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/utils/cpp_extension.py",
    "/torch/cuda/_utils.py",
    "/triton/compiler/",
    "/triton/backends/nvidia/compiler.py",
    "/triton/runtime/build.py",
    "/cupy/cuda/compiler.py",
    "/cutlass/base_dsl/",
    "/numba/core/compiler.py",
    "/tilelang/jit/",
)
"""Parts of the paths of source files whose functions are on the stack only during compilation. Dynamo's other
files are also on the stack while compiled code runs."""
_COMPILING = "compiling"
"""The name of the observing thread while the main thread compiles."""
_LOOK_SECONDS = 0.02
_POLL_SECONDS, _MAX_POLL_SECONDS = 0.05, 0.5


class TimeLimitExceeded(Exception):
    """A process exceeded its time limit for running or for compiling."""

    def __init__(self, seconds: float, compiling: bool):
        super().__init__(f"{'compiling ' if compiling else ''}took more than {seconds:g} s and was killed")
        self.compiling = compiling


class TimeLimits:
    """Separate limits on the seconds that a process runs and compiles."""

    def __init__(self, run_seconds: float, compile_seconds: float):
        self._run_limit, self._compile_limit = run_seconds, compile_seconds
        self.run_seconds = self.compile_seconds = 0.0

    def wait(
        self,
        is_over: Callable[[float], bool],
        is_compiling: Callable[[], bool],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until `is_over` returns True; raises TimeLimitExceeded. `is_over` itself waits for at most the
        seconds that it is given. Time in which the process is paused does not count."""
        begun = last = time.monotonic()
        # a long build is watched less often: watching takes milliseconds of the judge's process
        while True:
            seconds = min(max(_POLL_SECONDS, (last - begun) / 20), _MAX_POLL_SECONDS)
            if is_over(min(seconds, self._run_limit / 4)):
                return
            if is_paused():
                last = time.monotonic()
                continue
            compiling = is_compiling()
            now = time.monotonic()
            if compiling:
                self.compile_seconds += now - last
            else:
                self.run_seconds += now - last
            last = now
            if self.compile_seconds > self._compile_limit:
                raise TimeLimitExceeded(self._compile_limit, compiling=True)
            if self.run_seconds > self._run_limit:
                raise TimeLimitExceeded(self._run_limit, compiling=False)


def is_compiling(pids: list[int]) -> bool:
    """Whether one of these processes is a running compiler, or has a thread that reports compilation."""
    return any(
        (procfs.thread_name(pid, pid) in _COMPILERS and procfs.state(pid) not in "TtZX")
        or any(procfs.thread_name(pid, thread) == _COMPILING for thread in procfs.thread_ids(pid))
        for pid in pids
    )


@contextlib.contextmanager
def announced_compilation() -> Iterator[None]:
    """In this block, another thread reports by its name whether the calling thread compiles."""
    ended, observed = threading.Event(), threading.get_ident()

    def observe() -> None:
        own_name, last = Path("/proc/thread-self/comm"), ""
        while not ended.wait(_LOOK_SECONDS):
            name = _COMPILING if _is_in_compiler(sys._current_frames().get(observed)) else "running"
            if name != last:
                with contextlib.suppress(OSError):
                    own_name.write_text(name)
                last = name

    thread = threading.Thread(target=observe, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _is_in_compiler(frame: FrameType | None) -> bool:
    while frame:
        if any(part in frame.f_code.co_filename for part in _COMPILER_FILES):
            return True
        frame = frame.f_back
    return False
