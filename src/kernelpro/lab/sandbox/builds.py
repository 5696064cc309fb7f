"""Builds ahead of time: compilers run in sandboxes without a GPU, on all cores, while the GPU measures.

The artifacts of a build are cached in memory and on disk, under a hash of the candidate's source and the
toolchain. Only that candidate gets them, so that no candidate can prepare anything for another.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch

from kernelpro.lab.exclusive import compiling
from kernelpro.lab.languages import CandidateSource, cpp, cuda, cute, triton, triton_ahead, without_comments
from kernelpro.lab.languages.cuda import architecture_name
from kernelpro.lab.sandbox import extensions
from kernelpro.lab.sandbox.background import BackgroundWork
from kernelpro.lab.sandbox.compilation import TimeLimitExceeded
from kernelpro.lab.sandbox.extensions import builds_lazily
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import ResourceLimits
from kernelpro.lab.sandbox.wire import ChannelClosed, MalformedMessage, ReplyTimeout
from kernelpro.records import Candidate, Options, Status, Task, digest, folders

BuildKey = tuple[str, str, str]
"""The candidate's id, the target and the task's id."""
_COMPILES = re.compile(r"\bruntime\b|kernelpro\.runtime|load_inline|cpp_extension")
_FORMAT = "3"
"""The format of the artifacts. If it changes, older files in the cache are ignored."""
_MAX_CACHED_BUILDS = 256
_MAX_AHEAD_SECONDS = 15.0
"""Time limit for constructing and calling a model without data, not counting compilers."""


class Builds:
    """Builds candidates in the background and caches their artifacts."""

    def __init__(self, launcher: SandboxLauncher, workers: int | None = None):
        self._launcher = launcher
        self.background = BackgroundWork()
        """The builds that are running, and what else is paused with them."""
        workers = workers or max(1, len(os.sched_getaffinity(0)) - 1)
        self._pool, self._ahead_pool = ThreadPoolExecutor(workers), ThreadPoolExecutor((workers + 1) // 2)
        self._jobs: dict[BuildKey, Future[bytes]] = {}
        self._ahead: set[BuildKey] = set()
        """Builds for which no job has waited yet."""
        self.notes: dict[str, str] = {}
        """By candidate id: a failure of the build other than a compile error. Judging shows the same one."""
        self._lock = threading.Lock()

    def begin(
        self,
        candidate: Candidate,
        target: str,
        options: Options,
        task: Task | None = None,
        is_ahead: bool = False,
    ) -> Future[bytes]:
        """Start a build in the background. The same candidate is never built twice.

        With `task`, its inputs are also used to compile Triton kernels, and extensions that the model does
        not build at import. `is_ahead`: no job waits for the build yet, so that it queues behind others.
        """
        task = task if _is_triton(candidate, target) or builds_lazily(candidate.source) else None
        with self._lock:
            key = (candidate.id, target, task.id if task else "")
            job = self._jobs.get(key)
            if job and key in self._ahead and not is_ahead:
                self._ahead.discard(key)
                job = None if job.cancel() else job  # if it has not started, it starts at once
            if job and not _is_retryable(job):
                return job
            while len(self._jobs) >= _MAX_CACHED_BUILDS:
                self._jobs.pop(next(iter(self._jobs)))
            pool = self._ahead_pool if is_ahead else self._pool
            self._jobs[key] = pool.submit(self._build, candidate, target, options, task)
            if is_ahead:
                self._ahead.add(key)
            return self._jobs[key]

    def get(self, candidate: Candidate, target: str, options: Options, task: Task | None = None) -> bytes:
        """The artifacts of the build, as a tar; raises CandidateRejected for a build that failed."""
        build = self.begin(candidate, target, options, task)
        if not build.done():
            with self.background.resumed():  # the caller may have paused it
                return build.result()
        return build.result()

    def _build(self, candidate: Candidate, target: str, options: Options, task: Task | None) -> bytes:
        if not (task or _COMPILES.search(without_comments(candidate.source))):
            return b""
        cached = _cache_path(candidate, target, task)
        if cached.exists():
            return cached.read_bytes()
        with compiling():
            artifacts = self._compile(candidate, target, options, task)
        if has_artifacts(artifacts):
            partial = cached.with_suffix(f".{os.getpid()}")
            with contextlib.suppress(OSError):  # a full or read-only disk only costs another build
                cached.parent.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(artifacts)
                partial.replace(cached)
        return artifacts

    def _compile(self, candidate: Candidate, target: str, options: Options, task: Task | None) -> bytes:
        environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MAX_JOBS": "2"}
        environment |= compiler_variables(target)
        memory = int(0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        self.background.wait_until_resumed()
        process = self._launcher.start(
            "build", ResourceLimits(memory, address_space=False), environment=environment
        )
        buffer = io.BytesIO()
        if task:
            torch.save({"task": task}, buffer)
        try:
            request = {
                "op": "build",
                "may_compile": True,
                "source": candidate.source,
                "device": triton_ahead.device_properties() if target == "cuda" else None,
                "run_seconds": min(_MAX_AHEAD_SECONDS, options.call_timeout / 4),
                "compile_seconds": 0.9 * options.build_timeout,
            }
            with self.background.member(process):
                process.channel.send(request, buffer.getvalue())
                reply, artifacts = process.receive(options.call_timeout, options.build_timeout)
        except (ReplyTimeout, TimeLimitExceeded) as error:
            # the first call in the judge compiles the missing Triton kernels
            if task and not _COMPILES.search(without_comments(candidate.source)):
                self.notes[candidate.id] = f"compiling ahead of time: {error}"
                return b""
            raise CandidateRejected(Status.TIMED_OUT, f"building: {error}") from None
        except (ChannelClosed, MalformedMessage):
            self.notes[candidate.id] = f"the build {process.describe_exit()}"
            return b""  # judging shows the same failure
        finally:
            process.kill()
        if reply.get("ok") is not True:
            if reply.get("stage") == "build":
                raise CandidateRejected(Status.BUILD_FAILED, str(reply.get("error")))
            self.notes[candidate.id] = str(reply.get("error"))
            return b""
        if "note" in reply:
            self.notes[candidate.id] = str(reply["note"])
        return artifacts

    def close(self) -> None:
        """Cancel builds that have not started."""
        for pool in (self._pool, self._ahead_pool):
            pool.shutdown(wait=False, cancel_futures=True)


def when_all_end(builds: Iterable[Future[bytes]], on_end: Callable[[], None]) -> None:
    """Call `on_end` once, when every build has a result or an error, or was cancelled."""
    running, lock = set(builds), threading.Lock()

    def end(build: Future[bytes]) -> None:
        with lock:
            running.discard(build)
            is_last = not running
        if is_last:
            on_end()

    for build in tuple(running):
        build.add_done_callback(end)


def _is_retryable(job: Future[bytes]) -> bool:
    """Whether a failed build may succeed if repeated: after a timeout or lack of memory, but not after a
    compile error."""
    error = job.exception() if job.done() and not job.cancelled() else None
    return error is not None and getattr(error, "status", None) is not Status.BUILD_FAILED


def has_artifacts(artifacts: bytes) -> bool:
    """Whether anything was built: an empty tar is all zeros."""
    return bool(artifacts.strip(b"\0"))


def _cache_path(candidate: Candidate, target: str, task: Task | None) -> Path:
    """The cache file for the artifacts of this candidate with this toolchain."""
    arch = json.dumps(compiler_variables(target))
    machine = platform.machine(), sys.version, _toolchain(), str(cute.cutlass_root()), arch
    key = digest(_FORMAT, candidate.id, target, task.id if task else "", *machine)
    return folders.cache("candidates", f"{key}.tar")


def _is_triton(candidate: Candidate, target: str) -> bool:
    return (
        target == "cuda"
        and torch.cuda.is_available()
        and bool(triton.version())
        and "triton" in CandidateSource(candidate.source).languages()
    )


@lru_cache
def _toolchain() -> str:
    """Versions of the compilers and of torch."""
    versions = [str(torch.__version__), triton.version()]
    for program in filter(None, (cpp.compiler(), cuda.nvcc())):
        versions.append(subprocess.run([program, "--version"], capture_output=True, text=True).stdout)
    return "\n".join(versions)


@lru_cache
def compiler_variables(target: str) -> dict[str, str]:
    """Variables that name the GPU to compile for, the same in all sandboxes, with and without a GPU."""
    if target != "cuda":
        return {}
    major, minor = torch.cuda.get_device_capability()
    name = architecture_name(major, minor)
    return {
        "KERNELPRO_CUDA_ARCH": name,
        "TORCH_CUDA_ARCH_LIST": extensions.torch_architecture(major, minor, name.endswith("a")),
    }
