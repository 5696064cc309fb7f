"""Whose turn it is, counted job by job."""

from __future__ import annotations

import pytest

from kernelpro.pools.pool import silent
from kernelpro.pools.waiting import _MOMENT_SECONDS, Asked, Queues, Runs, Turns, Worker
from kernelpro.records import Job, Result, Task

pytestmark = pytest.mark.together
ENVIRONMENT = Asked("e", Job("e", "environment"), silent, 0.0)


def of(task: str) -> Asked:
    return Asked(task, Job(task, "probe", Task(f"# {task}", task)), silent, 0.0)


def sent_until_over(turns: Turns, worker: Worker, task: str, waiting: Queues) -> int:
    turns.sent(worker, of(task), waiting)
    while not turns.over(worker):
        turns.sent(worker, of(task), waiting)
    return worker.run


def test_a_task_that_had_to_give_way_has_a_longer_turn_when_it_comes_back() -> None:
    turns, worker, waiting = Turns(4), Worker(), Queues()
    waiting.put(of("large"))
    assert sent_until_over(turns, worker, "large", waiting) == 4
    assert sent_until_over(turns, worker, "small", waiting) == 4
    assert sent_until_over(turns, worker, "large", waiting) == 8
    assert sent_until_over(turns, worker, "small", waiting) == 4, "nothing of it waited"


def test_a_job_without_a_task_takes_no_worker_away() -> None:
    turns, worker, waiting = Turns(4), Worker(), Queues()
    for asked in (of("large"), ENVIRONMENT):
        turns.sent(worker, asked, waiting)
    assert (worker.task, worker.run) == (of("large").task, 2)


def test_a_worker_stays_for_a_moment_with_a_task_that_a_run_works_on() -> None:
    runs = Runs()
    asked, once, studied = (
        of("asked again"),
        of("asked once"),
        Asked("s", Job("s", "study", Task("# s", "s")), silent, 0.0),
    )
    for one in (asked, once, studied):
        runs.asked(one)
    for one in (asked, once):
        one.answer.set_result(Result(one.key))
    runs.asked(of("asked again"))
    for one, stays in ((asked, True), (once, False), (studied, True)):
        worker = Worker(task=one.task, rests_since=100.0)
        assert runs.hold(worker, False, 100.0) == runs.hold(worker, True, 1000.0) == stays
        assert not runs.hold(worker, False, 100.0 + _MOMENT_SECONDS)


def test_who_asks_for_all_at_once_does_not_come_back() -> None:
    runs, many = Runs(), [of("many") for _ in range(3)]
    for one in many:
        runs.asked(one)
    for one in many[:2]:
        one.answer.set_result(Result(one.key))
    runs.asked(of("many"))
    assert not runs.hold(Worker(task=many[0].task), True, 0.0)
