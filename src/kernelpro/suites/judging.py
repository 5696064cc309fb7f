"""Probes and judges a suite: every job without a result goes to the pool, every result to the log."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

from kernelpro.pools.pool import Pool, ResultPending
from kernelpro.records import Candidate, Job, Options, Progress, Result, Target, digest
from kernelpro.suites.compile_next import CompileNext
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import LoggedResult, ResultsLog

_MAX_SUBMITTED = 4096
"""Jobs in the pool at a time: more than the largest pool runs (256 workers, four jobs each), so that the
scheduler can choose among many tasks."""

OnStage = Callable[[str, str], None]
"""Called with a problem and the stage it is in."""


@dataclass(frozen=True)
class BenchJob:
    """A probe of a problem, or the judgement of one kernel on it."""

    problem: Problem
    target: Target
    options: Options
    candidate: Candidate | None = None

    @property
    def key(self) -> str:
        """The identity of the job, by its content."""
        what = self.candidate.id if self.candidate else "probe"
        return digest("question", self.problem.task.id, what, self.target, self.options.nondefault_json())

    def job(self) -> Job:
        """The job for a pool."""
        if self.candidate is None:
            return Job(self.key, "probe", self.problem.task, None, self.target, self.options)
        return Job(self.key, "judge", self.problem.task, self.candidate, self.target, self.options)


def run_jobs(
    jobs: Sequence[BenchJob],
    pool: Pool,
    log: ResultsLog,
    on_stage: OnStage,
    on_done: Callable[[BenchJob], None],
    time_limit: float | None = None,
) -> int:
    """Run all jobs, for no more than `time_limit` seconds; return how many results are outstanding."""
    outstanding, deadline = 0, math.inf if time_limit is None else time.monotonic() + time_limit
    waiting, submitted = deque(jobs), dict[Future[Result], BenchJob]()
    compile_next = CompileNext(pool, ((job.problem.task, job.target, job.options) for job in jobs))
    if jobs:
        compile_next.after(jobs[0].problem.task)
    while waiting or submitted:
        while waiting and len(submitted) < _MAX_SUBMITTED:
            job = waiting.popleft()
            submitted[pool.submit(job.job(), _forward_progress(job, on_stage))] = job
        left = deadline - time.monotonic()
        if left <= 0:
            return outstanding + len(waiting) + len(submitted)
        for future in wait(
            submitted, timeout=left if left < math.inf else None, return_when=FIRST_COMPLETED
        ).done:
            job = submitted.pop(future)
            try:
                result = future.result()
            except ResultPending:
                outstanding += 1
                continue
            result, label = replace(result, job=job.key), job.problem.label
            log.add(LoggedResult(job.key, result, result.device_seconds, problem=label))
            compile_next.after(job.problem.task)
            on_done(job)
    return outstanding


def _forward_progress(job: BenchJob, on_stage: OnStage) -> Callable[[Progress], None]:
    return lambda progress: on_stage(job.problem.label, progress.stage)
