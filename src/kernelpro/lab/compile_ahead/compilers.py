"""A queue of references that are compiled ahead of their turn, served by low-priority processes.

The judge then finds torch.compile's code in the compilers' caches. The code itself becomes a candidate
(`seed`). A call with fake tensors also shows how much memory an eager call needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelpro.lab.sandbox.background import BackgroundWork
from kernelpro.lab.sandbox.launcher import clean_environment
from kernelpro.records import BaselineSeed, Record, StudyData, Target, Task, folders

_ROOT = str(Path(__file__).resolve().parents[3])
"""The folder of the package."""
_MAX_PROCESSES = 4
_TIMEOUT = 400.0
"""Time limit in seconds for one reference. Most networks take a minute on one core, the largest (DenseNet201)
more than 150 s. If one is not compiled ahead, the device waits while it compiles: 66 s for DenseNet201."""


@dataclass(frozen=True)
class AheadRequest(Record):
    """A reference to compile."""

    task: Task
    target: Target


@dataclass(frozen=True)
class AheadResult(Record):
    """What is known about a reference before the judge prepares it."""

    seed: str = ""
    """torch.compile's code as a candidate; empty if there is none."""
    reason: str = ""
    """Why there is no seed, or why nothing was compiled."""
    eager_bytes: int | None = None
    """Device memory of one eager call: parameters, inputs, intermediate tensors and outputs."""
    study: StudyData | None = None
    """Its operator graph, without seeds; None if it cannot be traced with fake tensors."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by stage: memory, compile, study."""


class AheadCompilers:
    """Processes that serve a queue of references. They start when the first reference is queued."""

    def __init__(
        self,
        processes: int | None = None,
        log: Path | None = None,
        background: BackgroundWork | None = None,
    ):
        """`processes`: None means a quarter of the cores, at most 4. `log`: a file for their output.
        `background`: they are paused with it."""
        self._background = background or BackgroundWork()
        self._count = (
            min(_MAX_PROCESSES, len(os.sched_getaffinity(0)) // 4) if processes is None else processes
        )
        self._log = log
        self._queue: queue.Queue[tuple[AheadRequest, Future[AheadResult]] | None] = queue.Queue()
        self._begun: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[str]] = set()
        self._closed = threading.Event()

    def begin(self, task: Task, target: Target, on_done: Callable[[StudyData | None], None]) -> None:
        """Compile a reference, once, into the compilers' caches. Then `on_done` gets its operator graph and
        the compiler's code, or None if there is no graph."""
        if task.id in self._begun or not self._count:
            return
        self._begun.add(task.id)
        future = self.submit(AheadRequest(task, target))
        future.add_done_callback(lambda future: on_done(_study_with_seed(future.result())))

    def submit(self, request: AheadRequest) -> Future[AheadResult]:
        """Queue a reference."""
        while len(self._threads) < self._count:
            self._threads.append(threading.Thread(target=self._serve, daemon=True))
            self._threads[-1].start()
        future: Future[AheadResult] = Future()
        self._queue.put((request, future))
        return future

    def _serve(self) -> None:
        process = self._start()
        while (item := self._queue.get()) is not None and not self._closed.is_set():
            request, future = item
            if process.poll() is not None:
                process = self._start()
            watchdog = threading.Timer(_TIMEOUT, _kill, (process,))
            watchdog.start()
            started = time.monotonic()
            assert process.stdin and process.stdout
            self._background.wait_until_resumed()
            try:
                with self._background.member(_PausableProcess(process)):
                    process.stdin.write(request.dumps() + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                future.set_result(AheadResult.from_json(json.loads(answer)))
            except (OSError, ValueError):  # it was killed or crashed
                seconds = time.monotonic() - started
                _kill(process)
                process.wait()  # else the next reference could still be sent to it
                future.set_result(
                    AheadResult(reason="its process ended", seconds={"compile": round(seconds, 3)})
                )
            finally:
                watchdog.cancel()
        _kill(process)

    def _start(self) -> subprocess.Popen[str]:
        cache = folders.cache("compiled")
        cache.mkdir(parents=True, exist_ok=True)
        # as for the judge's baselines: the compiler's settings are part of the caches' keys
        environment = os.environ | clean_environment()
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TRITON_CACHE_DIR": f"{cache}/triton",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
        with (self._log or Path(os.devnull)).open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "kernelpro.lab.compile_ahead.process"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: os.nice(10),
            )
        self._processes.add(process)
        return process

    def close(self) -> None:
        """Stop all processes."""
        self._closed.set()
        for process in list(self._processes):
            self._queue.put(None)
            _kill(process)


def _study_with_seed(result: AheadResult) -> StudyData | None:
    if result.study is None or not result.seed:
        return result.study
    return replace(result.study, seeds=(BaselineSeed("compile", "torch.compile", result.seed),))


class _PausableProcess:
    """A process with its group, which can be paused."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def pause(self) -> None:
        """Stop the group."""
        _signal_group(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the group continue."""
        _signal_group(self._process, signal.SIGCONT)


def _kill(process: subprocess.Popen[str]) -> None:
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
