"""The scheduling policy of all pools, job by job."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kernelpro.pools.pool import ignore_progress
from kernelpro.pools.scheduler import (
    LONG_WAIT_SECONDS,
    RUN_WAIT_SECONDS,
    PendingJob,
    PoolWorker,
    RunTracker,
    Scheduler,
)
from kernelpro.records import Candidate, Job, Result, Target, Task

pytestmark = pytest.mark.together


@dataclass(eq=False)
class FakeWorker(PoolWorker):
    hardware: str = "H200"

    def hardware_name(self, target: Target | None) -> str | None:
        return self.hardware


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pending(task: str, number: int = 0, submitted: float = 0.0, candidate: str = "") -> PendingJob:
    written = Candidate(candidate) if candidate else None
    job = Job(f"{task} {number}", "judge", Task(f"# {task}", task) if task else None, written)
    return PendingJob(job.id, job, ignore_progress, submitted)


def scheduler(clock: Clock, build_ahead: bool = False, max_sent: int = 1) -> Scheduler[FakeWorker]:
    return Scheduler(max_sent=max_sent, first_turn=4, warm_cost=3, build_ahead=build_ahead, clock=clock)


def send(worker: FakeWorker, job: PendingJob) -> None:
    worker.sent[job.key] = job


def finish_all(chosen: Scheduler[FakeWorker], worker: FakeWorker) -> list[str]:
    finished = [chosen.finished(worker, key) for key in list(worker.sent)]
    for job in finished:
        job.finish(Result(job.key))
    return [job.job.id for job in finished]


def order(chosen: Scheduler[FakeWorker], worker: FakeWorker) -> list[str]:
    """The tasks of all queued jobs as one worker gets them."""
    found: list[str] = []
    while chosen.queue:
        chosen.assign([worker], send)
        found += finish_all(chosen, worker)
    return [name.partition(" ")[0] for name in found]


def test_a_task_that_had_to_yield_gets_a_longer_turn() -> None:
    chosen = scheduler(Clock())
    for task, count in (("large", 20), ("small", 4), ("other", 4)):
        for number in range(count):
            chosen.submit(pending(task, number))
    turns = [("large", 4), ("small", 4), ("large", 8), ("other", 4), ("large", 8)]
    assert order(chosen, FakeWorker()) == [task for task, jobs in turns for _ in range(jobs)]


def test_a_job_without_a_task_leaves_the_worker_its_task() -> None:
    chosen, worker = scheduler(Clock()), FakeWorker()
    for task in ("large", ""):
        chosen.submit(pending(task))
        assert order(chosen, worker) == [task]
    assert (worker.task, worker.turn_jobs) == (pending("large").task, 2)


def test_a_second_worker_warms_a_task_only_if_that_pays() -> None:
    for jobs, workers in ((3, 1), (4, 2), (7, 3)):
        chosen, three = scheduler(Clock(), max_sent=8), [FakeWorker() for _ in range(3)]
        for number in range(jobs):
            chosen.submit(pending("task", number))
        chosen.assign(three, send)
        assert sum(bool(worker.sent) for worker in three) == workers, f"{jobs} jobs"


def test_a_task_stays_on_one_kind_of_hardware() -> None:
    chosen, two = scheduler(Clock(), max_sent=8), [FakeWorker(), FakeWorker(hardware="A100")]
    for number in range(12):
        chosen.submit(pending("task", number))
    chosen.assign(two, send)
    assert len(two[0].sent) == 8 and not two[1].sent


def test_a_busy_worker_takes_another_task_only_to_build_ahead() -> None:
    for build_ahead, candidate, sent in ((True, "x = 1", 2), (True, "", 1), (False, "x = 1", 1)):
        chosen, worker = scheduler(Clock(), build_ahead, max_sent=8), FakeWorker()
        for task in ("first", "second"):
            chosen.submit(pending(task, candidate=candidate))
        chosen.assign([worker], send)
        assert len(worker.sent) == sent


def test_a_job_that_waited_long_goes_first() -> None:
    clock = Clock()
    chosen, worker = scheduler(clock), FakeWorker(task=pending("warm").task)
    chosen.submit(pending("old"))
    clock.now = LONG_WAIT_SECONDS
    chosen.submit(pending("warm", submitted=clock.now))
    assert order(chosen, worker) == ["old", "warm"]


def test_the_job_of_a_dead_worker_has_used_an_attempt() -> None:
    chosen, jobs = scheduler(Clock()), [pending("task", number) for number in range(3)]
    assert chosen.requeue(jobs.copy(), max_attempts=2) is None
    assert [job.attempts for job in jobs] == [1, 0, 0] and list(chosen.queue) == jobs
    chosen.queue.remove_group(jobs[0].group)
    assert chosen.requeue(jobs.copy(), max_attempts=2) is jobs[0] and list(chosen.queue) == jobs[1:]


def test_a_worker_waits_a_moment_for_the_next_job_of_a_run() -> None:
    runs = RunTracker()
    again, once = pending("again"), pending("once")
    studied = PendingJob("s", Job("s", "study", Task("# s", "s")), ignore_progress, 0.0)
    for job in (again, once, studied):
        runs.submitted(job)
    for job in (again, once):
        job.finish(Result(job.key))
    runs.submitted(pending("again"))
    for job, holds in ((again, True), (once, False), (studied, True)):
        worker = FakeWorker(task=job.task, idle_since=100.0)
        assert runs.holds(worker, 100.0) == holds
        assert not runs.holds(worker, 100.0 + RUN_WAIT_SECONDS)
        worker.sent["x"] = job
        assert runs.holds(worker, 1000.0) == holds


def test_a_worker_does_not_wait_for_a_run_that_has_ended() -> None:
    clock, worker = Clock(), FakeWorker()
    chosen = scheduler(clock)
    for number in range(2):
        chosen.submit(job := pending("run", number))
        chosen.assign([worker], send)
        finish_all(chosen, worker)
    chosen.submit(pending("other"))
    chosen.assign([worker], send)
    assert not worker.sent, "the run's next job may come"
    assert job.job.task
    chosen.end_run(job.job.task)
    chosen.assign([worker], send)
    assert [each.task for each in worker.sent.values()] == [pending("other").task]


def test_a_caller_who_submits_all_at_once_does_not_come_back() -> None:
    runs, many = RunTracker(), [pending("many", number) for number in range(3)]
    for job in many:
        runs.submitted(job)
    for job in many[:2]:
        job.finish(Result(job.key))
    runs.submitted(pending("many", 3))
    assert not runs.holds(FakeWorker(task=many[0].task, sent={"x": many[2]}), 0.0)
