"""Whose turn it is, counted job by job."""

from __future__ import annotations

import pytest

from kernelpro.pools.pool import silent
from kernelpro.pools.waiting import Asked, Queues, Turns, Worker
from kernelpro.records import Job, Task

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
