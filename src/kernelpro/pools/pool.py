"""What a pool is: jobs in, results out, wherever the hardware is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Protocol, Self

from kernelpro.records import Job, Progress, Result, Status, Verdict

Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """For those who do not care how far a job is."""


class Outstanding(Exception):
    """The result is not there yet and the pool does not wait: ask for the same job again later."""


class Pool(Protocol):
    """Every implementation promises this.

    Each job that was submitted is answered exactly once, and its answer carries the id that it was submitted with. Workers
    that die or hang are replaced, and what they were at is done again; a job that does this to several is answered with
    how they died. All jobs of one task are timed on one kind of hardware, one at a time on each device. Jobs that wait
    have their builds started where a worker has them at hand.
    """

    def submit(self, job: Job, progress: Report = silent) -> Future[Result]:
        """The future's exception is `Outstanding` where the result must be waited for outside this process."""
        ...

    def ask(self, job: Job, progress: Report = silent) -> Result:
        return self.submit(job, progress).result()

    @property
    def outstanding(self) -> int:
        """Jobs that were submitted and have no result yet."""
        ...

    def close(self) -> None:
        """End what this pool has started; jobs that are left to somebody else go on."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(pool: Pool, jobs: Iterable[Job], progress: Report = silent) -> Iterator[Result]:
    """Results in the order of the jobs."""
    for answer in [pool.submit(job, progress) for job in jobs]:
        yield answer.result()


def lost(job: Job, reason: str) -> Result:
    """The answer to a job that nobody lived to answer. A verdict says so in its data: the machine may be to blame, so it may be
    asked for again."""
    if job.kind == "judge" and job.candidate:
        return Result(
            job.id, verdict=Verdict(job.candidate.name, Status.CRASHED, reason), lost=reason
        )
    return Result(job.id, error=reason)
