"""A fake pool with fixed results, for tests that need exact times and energies."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from kernelpro.records import (
    BaselineSeed,
    EnvironmentData,
    Hardware,
    Interval,
    Job,
    ProbeData,
    Result,
    StudyData,
    Verdict,
    Work,
)


class KnownLab:
    """One baseline of 1 ms; subclasses define the verdicts."""

    pending_jobs = 0
    seeds: tuple[BaselineSeed, ...] = ()

    def verdict(self, job: Job, source: str) -> Verdict:
        raise NotImplementedError

    def submit(self, job: Job, progress: Any = None) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(self._result(job))
        return future

    def run(self, job: Job, progress: Any = None) -> Result:
        return self._result(job)

    def _result(self, job: Job) -> Result:
        if job.kind == "environment":
            return Result(job.id, data=EnvironmentData({}))
        if job.kind == "probe":
            times = {"compile": Interval(1.0, 1.0, 1.0)}
            work = Work(0, 0, 0.0)
            probe = ProbeData(True, "", "fp32", "fp32", Hardware(), work, {}, {}, times, 0.01, {})
            return Result(job.id, data=probe)
        if job.kind == "study":
            return Result(job.id, data=StudyData(seeds=self.seeds))
        if job.kind == "profile":
            return Result(job.id, error="not here")
        assert job.candidate
        return Result(job.id, verdict=self.verdict(job, job.candidate.source))
