"""Doing jobs: one warm judge, builds in the background, one result for each job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernelpro.lab.judge import environment
from kernelpro.lab.judge.builds import Builds
from kernelpro.lab.judge.cell import Nursery
from kernelpro.lab.judge.judge import Judge
from kernelpro.lab.judge.participant import Verdictable
from kernelpro.records import BadInput, Job, Progress, Record, Result, Target


class Worker:
    """Keeps one task warm: jobs that follow each other on it pay for it once."""

    def __init__(self, nursery: Nursery, tell: Callable[[Record], None]):
        self._nursery, self._tell = nursery, tell
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
                job.task, target, job.options, self._nursery, self._builds, lambda stage: self._tell(Progress(job.id, stage))
            )
            self._judge.prepare()
            self._key = key
        assert self._judge
        self._judge.options = job.options
        self._judge.report_to(lambda stage: self._tell(Progress(job.id, stage)))
        return self._judge

    def forget(self) -> None:
        """Let the warm task go."""
        if self._judge:
            self._judge.close()
        self._judge, self._key = None, None

    def close(self) -> None:
        self.forget()
        self._builds.close()


def _probe_data(judge: Judge) -> dict[str, Any]:
    return {
        "scorable": judge.not_scorable is None,
        "reason": judge.not_scorable,
        "precision": judge.precision,
        "tolerance": {name: limit.norm for name, limit in judge.tolerance.limits.items()},
        "dropped": judge.tolerance.dropped,
        "floor_ms": judge.floor_ms if judge.not_scorable is None else None,
    }
