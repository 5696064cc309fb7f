"""The interface of all pools: it takes jobs and returns results, wherever the hardware is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Protocol, Self

from kernelpro.records import (
    Candidate,
    Job,
    Options,
    Progress,
    Result,
    Status,
    StudyData,
    Target,
    Task,
    Verdict,
)

ProgressCallback = Callable[[Progress], None]
CompiledCallback = Callable[[StudyData | None], None]


def ignore_compiled(_: StudyData | None) -> None:
    """A callback that does nothing."""


def ignore_built() -> None:
    """A callback that does nothing."""


def ignore_progress(_: Progress) -> None:
    """A progress callback that does nothing."""


class ResultPending(Exception):
    """The result is not available yet, and the pool does not wait for it. Submit the same job again later."""


class Pool(Protocol):
    """A pool. All pools guarantee the following.

    Each submitted job gets exactly one result, which carries the job's id. Workers that die or hang are
    replaced, and their jobs run again; a job that kills several workers gets a result that says how they
    died. All jobs of one task are timed on one kind of hardware, one at a time on each device. While a worker
    times a job, it builds the candidates of its next jobs.
    """

    def submit(self, job: Job, progress: ProgressCallback = ignore_progress) -> Future[Result]:
        """Queue a job.

        The future raises `ResultPending` if the pool does not wait for a result from outside.
        """
        ...

    def run(self, job: Job, progress: ProgressCallback = ignore_progress) -> Result:
        """Submit a job and wait for its result."""
        return self.submit(job, progress).result()

    def compile_ahead(
        self, task: Task, target: Target, on_compiled: CompiledCallback = ignore_compiled
    ) -> None:
        """Compile a reference whose jobs come soon, if a worker can do that without disturbing measurements.
        `on_compiled` is called from another thread when it is compiled or has failed to, with its operator
        graph, or None if that cannot be traced without running the reference."""
        return

    def build_ahead(
        self,
        task: Task,
        target: Target,
        options: Options,
        candidates: tuple[Candidate, ...],
        on_built: Callable[[], None] = ignore_built,
    ) -> None:
        """Build candidates whose jobs come soon, if a worker can do that without disturbing measurements.
        `on_built` is called, perhaps from another thread, when all builds have ended, or at once if nothing
        is built ahead."""
        on_built()

    def end_run(self, task: Task) -> None:
        """A search run of this task has ended: no worker needs to wait for its next job."""
        return

    def abandon_task(self, task: Task) -> None:
        """No result of this task is needed any more: replace a worker that runs a job of it, which may never
        end. A pool that cannot do that lets the job end."""
        return

    @property
    def pending_jobs(self) -> int:
        """The number of submitted jobs without a result."""
        ...

    def close(self) -> None:
        """Stop everything that this pool has started. Jobs in a spool stay there."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_jobs(
    pool: Pool, jobs: Iterable[Job], progress: ProgressCallback = ignore_progress
) -> Iterator[Result]:
    """Submit all jobs and yield their results in the order of the jobs."""
    for future in [pool.submit(job, progress) for job in jobs]:
        yield future.result()


def lost_result(job: Job, reason: str, internal_error: bool = False) -> Result:
    """The result of a job that no worker finished; see `Result.lost`."""
    if job.kind == "judge" and job.candidate:
        status = Status.INTERNAL_ERROR if internal_error else Status.CRASHED
        verdict = Verdict(job.candidate.name, status, reason)
        return Result(job.id, verdict=verdict, lost=reason, internal_error=internal_error)
    return Result(job.id, error=reason, internal_error=internal_error)
