"""The local pool: one worker process on this machine, spoken to in JSON lines.

A worker that dies takes only the job it was at: that job is answered with how it died, a new worker is
started, and the jobs behind it go on.
"""

from __future__ import annotations

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
        death: list[int] = []
        for result in _until_death(waiting, progress, sandbox, death):
            waiting.pop(0)
            yield result
        if waiting:
            yield _lost(waiting.pop(0), f"the worker died while it was at this job ({_how(death[0])})")


def _lost(job: Job, reason: str) -> Result:
    if job.kind == "judge" and job.candidate:
        return Result(job.id, verdict=Verdict(job.candidate.name, Status.CRASHED, reason))
    return Result(job.id, error=reason)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}; its last words are above"


def _until_death(jobs: list[Job], progress: Callable[[Progress], None], sandbox: str, death: list[int]) -> Iterator[Result]:
    """Results until all jobs are done or the worker is dead; its exit code is then in `death`."""
    # whatever a worker leaves behind, even one that was killed, goes with this folder
    folder = tempfile.TemporaryDirectory(prefix="kernelpro-", ignore_cleanup_errors=True)
    environment = os.environ | {"KERNELPRO_SANDBOX": sandbox, "PYTHONPATH": _python_path(), "TMPDIR": folder.name}
    command = [sys.executable, "-m", "kernelpro.lab.worker"]
    worker = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert worker.stdin and worker.stdout
    stdin = worker.stdin

    def feed() -> None:
        try:
            for job in jobs:
                stdin.write(job.dumps() + "\n")
                stdin.flush()
            stdin.close()
        except BrokenPipeError:
            pass  # the reader below sees the end of the output and says so

    lines = [job.id for job in jobs]
    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        for line in worker.stdout:
            data = json.loads(line)
            if data.pop("type") == "progress":
                progress(Progress.from_json(data))
                continue
            yield Result.from_json(data)
            lines.pop(0)
            if not lines:
                break
        if not lines:
            worker.wait(timeout=60)
        else:
            death.append(worker.wait())
    finally:
        _end(worker)
        feeder.join(timeout=5)
        folder.cleanup()


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
