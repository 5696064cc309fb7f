"""The worker: jobs in, results out, as JSON lines. Needs Python and torch alone.

Each input line is a `records.Job`; each output line a `records.Result` or `records.Progress`. One task
is kept warm: jobs that follow each other on the same task pay for it once. A job that is queued behind
another has its build started at once, so that compilers run while the device is measuring.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import replace
from typing import Any, TextIO

import torch

from kernelpro.lab.judge import environment
from kernelpro.lab.judge.builds import Builds
from kernelpro.lab.judge.cell import Nursery, harden_parent
from kernelpro.lab.judge.judge import Judge
from kernelpro.lab.judge.participant import Verdictable
from kernelpro.records import BadInput, Job, Progress, Record, Result, Target


class Worker:
    def __init__(self, output: TextIO, sandbox: str = "auto"):
        harden_parent()
        self._output = output
        self._nursery = Nursery(sandbox)
        self._builds = Builds(self._nursery)
        self._judge: Judge | None = None
        self._key: Any = None

    def announce(self, job: Job) -> None:
        """A job has arrived and waits: start its build."""
        if job.kind == "judge" and job.candidate:
            self._builds.begin(job.candidate, self._target(job), job.options)

    def run(self, job: Job) -> Result:
        """Do one job. Bad input is an answer, not an exception."""
        try:
            if job.kind == "environment":
                return Result(job.id, data=environment.snapshot(self._target(job)) | {"sandbox": self._nursery.level})
            if job.kind == "build":
                return self._build(job)
            if job.task is None:
                raise BadInput(f"job {job.id}: a {job.kind} job needs a task")
            judge = self._warm(job)
            if job.kind == "probe":
                return Result(job.id, data=_probe_data(judge))
            if job.candidate is None:
                raise BadInput(f"job {job.id}: a judge job needs a candidate")
            return Result(job.id, verdict=judge.judge(job.candidate))
        except BadInput as error:
            return Result(job.id, error=str(error))

    def _build(self, job: Job) -> Result:
        if job.candidate is None:
            raise BadInput(f"job {job.id}: a build job needs a candidate")
        try:
            artifacts = self._builds.get(job.candidate, self._target(job), job.options)
        except Verdictable as error:
            return Result(job.id, data={"status": error.status.value, "reason": error.reason})
        return Result(job.id, data={"status": "built", "bytes": len(artifacts)})

    def _target(self, job: Job) -> Target:
        return job.target or ("cuda" if torch.cuda.is_available() else "cpu")

    def _warm(self, job: Job) -> Judge:
        assert job.task
        target = self._target(job)
        key = (job.task.id, target, replace(job.options, allow=(), min_authored=0.0).dumps())
        if self._key != key:
            self.forget()
            self._judge = Judge(
                job.task, target, job.options, self._nursery, self._builds, lambda stage: self.tell(Progress(job.id, stage))
            )
            self._key = key
        assert self._judge
        self._judge.options = job.options
        self._judge.report_to(lambda stage: self.tell(Progress(job.id, stage)))
        return self._judge

    def forget(self) -> None:
        """Let the warm task go."""
        if self._judge:
            self._judge.close()
        self._judge, self._key = None, None

    def tell(self, record: Record) -> None:
        kind = type(record).__name__.lower()
        self._output.write(json.dumps({"type": kind, **record.to_json()}, separators=(",", ":")) + "\n")
        self._output.flush()

    def close(self) -> None:
        self.forget()
        self._builds.close()
        self._nursery.close()


def _probe_data(judge: Judge) -> dict[str, Any]:
    return {
        "scorable": judge.not_scorable is None,
        "reason": judge.not_scorable,
        "precision": judge.precision,
        "tolerance": {name: limit.norm for name, limit in judge.tolerance.limits.items()},
        "dropped": judge.tolerance.dropped,
        "floor_ms": judge.floor_ms if judge.not_scorable is None else None,
    }


def serve(lines: TextIO, output: TextIO, sandbox: str = "auto") -> None:
    """Read jobs until the input ends; answer each. A line that is no job is answered with an error."""
    worker = Worker(output, sandbox)
    jobs: queue.Queue[Job | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                job = Job.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                worker.tell(Result("", error=f"a line is no job: {type(error).__name__}: {error}"))
                continue
            worker.announce(job)
            jobs.put(job)
        jobs.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while (job := jobs.get()) is not None:
            worker.tell(worker.run(job))
    finally:
        worker.close()


def main() -> None:
    """Entry point for hosts where only Python and torch are installed: python -m kernelpro.lab.worker"""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with results
    serve(sys.stdin, output, os.environ.get("KERNELPRO_SANDBOX", "auto"))


if __name__ == "__main__":
    main()
