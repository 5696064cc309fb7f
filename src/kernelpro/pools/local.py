"""The local pool: one worker process on this machine, spoken to in JSON lines.

A worker that dies takes only the job it was at: that job is answered with how it died, a new worker is
started, and the jobs behind it go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kernelpro.records import Job, Progress, Result, Status, Verdict


def run(jobs: Iterable[Job], progress: Callable[[Progress], None] = lambda _: None, sandbox: str = "auto") -> Iterator[Result]:
    """Results in the order of the jobs."""
    waiting = list(jobs)
    while waiting:
        with _Worker(sandbox) as worker:
            worker.feed(waiting)
            for result in worker.results(progress):
                waiting.pop(0)
                yield result
                if not waiting:
                    break
            if waiting:
                how = worker.how_it_died()
        if waiting:
            yield _lost(waiting.pop(0), f"the worker died while it was at this job ({how})")


class Session:
    """One warm worker, asked one job after the other; a dead one is replaced at the next job."""

    def __init__(self, sandbox: str = "auto"):
        self._sandbox = sandbox
        self._worker: _Worker | None = None

    def ask(self, job: Job, progress: Callable[[Progress], None] = lambda _: None) -> Result:
        if self._worker is None:
            self._worker = _Worker(self._sandbox)
        self._worker.send(job)
        for result in self._worker.results(progress):
            return result
        how = self._worker.how_it_died()
        self.close()
        return _lost(job, f"the worker died while it was at this job ({how})")

    def close(self) -> None:
        if self._worker:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lost(job: Job, reason: str) -> Result:
    if job.kind == "judge" and job.candidate:
        return Result(job.id, verdict=Verdict(job.candidate.name, Status.CRASHED, reason))
    return Result(job.id, error=reason)


class _Worker:
    """A worker process and the folder that whatever it leaves behind goes with."""

    def __init__(self, sandbox: str):
        self._folder = tempfile.TemporaryDirectory(prefix="kernelpro-", ignore_cleanup_errors=True)
        environment = os.environ | {"KERNELPRO_SANDBOX": sandbox, "PYTHONPATH": _python_path(), "TMPDIR": self._folder.name}
        command = [sys.executable, "-m", "kernelpro.lab.worker"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._feeder: threading.Thread | None = None
        self._waiting = 0
        """Jobs sent and not yet answered."""

    def send(self, job: Job) -> None:
        """A worker that is dead is found out when its answer is read."""
        assert self._process.stdin
        self._waiting += 1
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(job.dumps() + "\n")
            self._process.stdin.flush()

    def feed(self, jobs: list[Job]) -> None:
        """All at once, without waiting: builds begin as soon as their job is known."""
        mine = list(jobs)

        def write() -> None:
            for job in mine:
                self.send(job)

        self._feeder = threading.Thread(target=write, daemon=True)
        self._feeder.start()

    def results(self, progress: Callable[[Progress], None]) -> Iterator[Result]:
        """As they come; ends with the worker."""
        assert self._process.stdout
        for line in self._process.stdout:
            data = json.loads(line)
            if data.pop("type") == "progress":
                progress(Progress.from_json(data))
            else:
                self._waiting -= 1
                yield Result.from_json(data)

    def how_it_died(self) -> str:
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}; its last words are above"

    def close(self) -> None:
        """Let it clean up and go, at once where it is at a job; insist after a while."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self._waiting:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        _end(self._process)
        if self._feeder:
            self._feeder.join(timeout=5)
        self._folder.cleanup()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(worker: subprocess.Popen[str]) -> None:
    """Ask it to clean up and go; insist after a while."""
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _python_path() -> str:
    """The worker finds this very package, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
