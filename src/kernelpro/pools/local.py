"""The local pool: one worker process on this machine, spoken to in JSON lines.

Jobs are done in the order in which they were sent; those that wait have their builds started. A worker that
dies takes only the job it was at: that job is answered with how it died, a new worker is started, and the
jobs behind it are sent again.
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
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from kernelpro.records import Job, Progress, Result, Status, Verdict

Report = Callable[[Progress], None]


def run(jobs: Iterable[Job], progress: Report = lambda _: None, sandbox: str = "auto") -> Iterator[Result]:
    """Results in the order of the jobs."""
    with Pool(sandbox) as pool:
        for answer in [pool.submit(job, progress) for job in jobs]:
            yield answer.result()


@dataclass
class _Asked:
    job: Job
    progress: Report
    answer: Future[Result]


class Pool:
    """One warm worker; the process starts with the first job."""

    def __init__(self, sandbox: str = "auto"):
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}
        """By a number of our own, in the order of sending; jobs of several callers may share an id."""
        self._count = 0
        self._worker: _Worker | None = None
        self._closing = False

    def submit(self, job: Job, progress: Report = lambda _: None) -> Future[Result]:
        """Send a job; its result comes as it is done. A job that has not been begun can be cancelled."""
        answer: Future[Result] = Future()
        with self._lock:
            self._count += 1
            key = str(self._count)
            self._asked[key] = _Asked(job, progress, answer)
            if self._worker is None:
                self._start()
            else:
                self._worker.send(replace(job, id=key))
        return answer

    def ask(self, job: Job, progress: Report = lambda _: None) -> Result:
        return self.submit(job, progress).result()

    def _start(self) -> None:
        """A new worker, with all jobs that are unanswered."""
        self._worker = _Worker(self._sandbox)
        for key, asked in self._asked.items():
            self._worker.send(replace(asked.job, id=key))
        threading.Thread(target=self._listen, args=(self._worker,), daemon=True).start()

    def _listen(self, worker: _Worker) -> None:
        for record in worker.records():
            if isinstance(record, Progress):
                if asked := self._asked.get(record.job):
                    asked.progress(Progress(asked.job.id, record.stage))
            else:
                self._answer(record.job, record)
        how = worker.how_it_died()
        with self._lock:
            worker.close()
            self._worker = None
            victim = next(iter(self._asked), None)
        if victim is not None and not self._closing:
            lost = _lost(self._asked[victim].job, f"the worker died while it was at this job ({how})")
            self._answer(victim, lost)
            with self._lock:
                if self._asked and self._worker is None:
                    self._start()

    def _answer(self, key: str, result: Result) -> None:
        with self._lock:
            asked = self._asked.pop(key, None)
        if asked and not asked.answer.cancelled():
            asked.answer.set_result(replace(result, job=asked.job.id))

    def close(self) -> None:
        """Let the worker clean up and go, at once where it is at a job."""
        with self._lock:
            self._closing = True
            worker, busy = self._worker, bool(self._asked)
        if worker:
            worker.end(at_once=busy)

    def __enter__(self) -> Pool:
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
        environment["KERNELPRO_PARENT"] = str(os.getpid())
        command = [sys.executable, "-m", "kernelpro.lab.worker"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def send(self, job: Job) -> None:
        """A worker that is dead is found out when its output ends."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(job.dumps() + "\n")
            self._process.stdin.flush()

    def records(self) -> Iterator[Progress | Result]:
        """What it says, until it ends."""
        assert self._process.stdout
        for line in self._process.stdout:
            data = json.loads(line)
            yield Progress.from_json(data) if data.pop("type") == "progress" else Result.from_json(data)

    def how_it_died(self) -> str:
        code = self._process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}; its last words are above"

    def end(self, at_once: bool) -> None:
        """Close its input, so that it cleans up and goes; insist after a while."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not at_once:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
        _end(self._process)
        self.close()

    def close(self) -> None:
        self._folder.cleanup()


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
