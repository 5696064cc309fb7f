"""A lab whose kernels are known beforehand, for what a real one cannot be made to show at will: exact times, energies."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from kernelpro.records import Job, Result, Verdict


class KnownLab:
    """One baseline of 1 ms; `verdict` says the rest."""

    outstanding = 0
    seeds: tuple[dict[str, str], ...] = ()

    def verdict(self, job: Job, source: str) -> Verdict:
        raise NotImplementedError

    def submit(self, job: Job, progress: Any = None) -> Future[Result]:
        future: Future[Result] = Future()
        future.set_result(self._result(job))
        return future

    def _result(self, job: Job) -> Result:
        if job.kind == "probe":
            one = {"value": 1.0, "low": 1.0, "high": 1.0}
            known = {"scorable": True, "baselines": {"compile": one}, "floor_ms": 0.01}
            return Result(
                job.id, data=known | {"precision": "fp32", "tolerance": {}, "hardware": {}, "work": {}}
            )
        if job.kind == "study":
            return Result(
                job.id, data={"graph": None, "no_graph": "", "seeds": list(self.seeds), "no_seeds": ""}
            )
        if job.kind == "profile":
            return Result(job.id, error="not here")
        assert job.candidate
        return Result(job.id, verdict=self.verdict(job, job.candidate.source))
