"""Builds ahead of time: compilers run in cells without a GPU, on all cores, while the GPU measures something
else.

What a build leaves is kept, in memory and on disk, under the hash of the candidate's content and the
toolchain, and given back to that candidate alone, so that no candidate can prepare anything for another.
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
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch

from kernelpro.lab.exclusive import compiling
from kernelpro.lab.languages import Source, cpp, cuda, cute, triton, triton_ahead, without_comments
from kernelpro.lab.languages.cuda import architecture_name
from kernelpro.lab.sandbox.launcher import SandboxLauncher
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.sandbox.process import ResourceLimits
from kernelpro.lab.sandbox.wire import ChannelClosed, MalformedMessage, ReplyTimeout
from kernelpro.records import Candidate, Options, Status, Task, digest, folders

_COMPILES = re.compile(r"\bruntime\b|kernelpro\.runtime|load_inline|cpp_extension")
_MAX_CACHED_BUILDS = 256


class Builds:
    def __init__(self, launcher: SandboxLauncher, workers: int | None = None):
        self._launcher = launcher
        self._pool = ThreadPoolExecutor(workers or max(1, len(os.sched_getaffinity(0)) - 1))
        self._jobs: dict[tuple[str, str, str], Future[bytes]] = {}
        self.notes: dict[str, str] = {}
        """By candidate: what went wrong beside its compilers. The judge finds that out for itself."""
        self._lock = threading.Lock()

    def begin(
        self, candidate: Candidate, target: str, options: Options, task: Task | None = None
    ) -> Future[bytes]:
        """Start building in the background; the same candidate is never built twice. Triton's kernels are
        compiled for a task."""
        task = task if target == "cuda" and torch.cuda.is_available() and _is_triton(candidate) else None
        with self._lock:
            key = (candidate.id, target, task.id if task else "")
            if (known := self._jobs.get(key)) and not _is_retryable(known):
                return known
            while len(self._jobs) >= _MAX_CACHED_BUILDS:
                self._jobs.pop(next(iter(self._jobs)))
            self._jobs[key] = self._pool.submit(self._build, candidate, target, options, task)
            return self._jobs[key]

    def get(self, candidate: Candidate, target: str, options: Options, task: Task | None = None) -> bytes:
        """What the build left, as a tar; raises the verdict of a build that failed."""
        return self.begin(candidate, target, options, task).result()

    def _build(self, candidate: Candidate, target: str, options: Options, task: Task | None) -> bytes:
        if not (task or _COMPILES.search(without_comments(candidate.source))):
            return b""
        kept = _cache_path(candidate, target, task)
        if kept.exists():
            return kept.read_bytes()
        with compiling():
            artifacts = self._compile(candidate, target, options, task)
        if has_artifacts(artifacts):
            partial = kept.with_suffix(f".{os.getpid()}")
            with contextlib.suppress(
                OSError
            ):  # a full or read-only disk costs a build the next time, nothing else
                kept.parent.mkdir(parents=True, exist_ok=True)
                partial.write_bytes(artifacts)
                partial.replace(kept)
        return artifacts

    def _compile(self, candidate: Candidate, target: str, options: Options, task: Task | None) -> bytes:
        environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MAX_JOBS": "2"}
        if target == "cuda":
            environment |= _architecture()
        memory = int(0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        cell = self._launcher.start(
            "build", ResourceLimits(memory, address_space=False), environment=environment
        )
        given = io.BytesIO()
        torch.save({"task": task}, given)
        try:
            request = {
                "op": "build",
                "source": candidate.source,
                "device": triton_ahead.facts() if task else None,
            }
            cell.channel.send(request, given.getvalue())
            answer, artifacts = cell.channel.receive(options.build_timeout)
        except ReplyTimeout:
            if task and not _COMPILES.search(
                without_comments(candidate.source)
            ):  # its first real call compiles what is missing
                self.notes[candidate.id] = (
                    f"compiling ahead took more than {options.build_timeout:.0f} s and was given up"
                )
                return b""
            raise CandidateRejected(
                Status.TIMED_OUT, f"building took more than {options.build_timeout:.0f} s and was killed"
            ) from None
        except (ChannelClosed, MalformedMessage):
            self.notes[candidate.id] = f"the build {cell.describe_exit()}"
            return b""  # whatever killed it will happen again where it is judged
        finally:
            cell.kill()
        if answer.get("ok") is not True:
            if answer.get("stage") == "build":
                raise CandidateRejected(Status.BUILD_FAILED, str(answer.get("error")))
            self.notes[candidate.id] = str(answer.get("error"))
            return b""
        if "note" in answer:
            self.notes[candidate.id] = str(answer["note"])
        return artifacts

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _is_retryable(job: Future[bytes]) -> bool:
    """Whether it failed, and another try may end otherwise: a compiler's errors stay, a timeout or a lack of
    memory may not."""
    error = job.exception() if job.done() and not job.cancelled() else None
    return error is not None and getattr(error, "status", None) is not Status.BUILD_FAILED


def has_artifacts(artifacts: bytes) -> bool:
    """Whether anything was built: an empty tar is all zeros. Nothing is kept of a build that was disturbed
    before it began."""
    return bool(artifacts.strip(b"\0"))


def _cache_path(candidate: Candidate, target: str, task: Task | None) -> Path:
    """Where the build of this candidate with this toolchain is kept."""
    arch = _architecture() if target == "cuda" else {}
    machine = platform.machine(), sys.version, _toolchain(), str(cute.tree()), json.dumps(arch)
    key = digest(candidate.id, target, task.id if task else "", *machine)
    return folders.cache("candidates", f"{key}.tar")


def _is_triton(candidate: Candidate) -> bool:
    return bool(triton.version()) and "triton" in Source(candidate.source).languages()


@lru_cache
def _toolchain() -> str:
    """Versions of the compilers and of torch."""
    found = [str(torch.__version__), triton.version()]
    for program in filter(None, (cpp.compiler(), cuda.nvcc())):
        found.append(subprocess.run([program, "--version"], capture_output=True, text=True).stdout)
    return "\n".join(found)


@lru_cache
def _architecture() -> dict[str, str]:
    """Compilers in a cell without a GPU are told which one to build for."""
    major, minor = torch.cuda.get_device_capability()
    return {
        "KERNELPRO_CUDA_ARCH": architecture_name(major, minor),
        "TORCH_CUDA_ARCH_LIST": f"{major}.{minor}",
    }
