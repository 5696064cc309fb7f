"""The searches of a suite, with a pool that runs nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernelpro.records import Job, Options, Result, RunConfig, Task
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import ResultsLog
from kernelpro.suites.searching import BenchSearch, run_searches

pytestmark = pytest.mark.together


class BusyPool:
    """A pool whose worker never ends the jobs of the task `endless`, and fails all others."""

    def __init__(self) -> None:
        self.abandoned: list[str] = []

    def submit(self, job: Job, progress: Any) -> Future[Result]:
        assert job.task
        future = Future[Result]()
        future.set_running_or_notify_cancel()
        if job.task.name != "endless":
            future.set_result(Result(job.id, error="it does not run"))
        return future

    def abandon_task(self, task: Task) -> None:
        self.abandoned.append(task.name)

    def compile_ahead(self, *_: object) -> None:
        pass

    def end_run(self, task: Task) -> None:
        pass


def test_a_problem_that_never_ends_is_given_up_and_the_next_begins(tmp_path: Path) -> None:
    pool: Any = BusyPool()
    searches = [
        BenchSearch(
            Problem(1, number, task),
            RunConfig(task, "cpu", "playbook", options=Options(effort="quick"), knowledge=False),
        )
        for number, task in enumerate((Task("# 1", "endless"), Task("# 2", "failing")), 1)
    ]
    done: list[str] = []
    with ResultsLog(tmp_path) as log:
        outstanding = asyncio.run(
            run_searches(
                searches,
                pool,
                log,
                1,
                lambda label, stage: None,
                lambda search: done.append(search.problem.label),
                problem_limit=0.5,
            )
        )
        results = {entry.problem: entry for entry in log.entries.values()}
    assert outstanding == 0 and done == ["1/1 endless", "1/2 failing"]
    assert results["1/1 endless"].result.error == "given up after 0.5 s (--problem-limit)"
    assert results["1/1 endless"].should_retry and not results["1/1 endless"].result.internal_error
    assert results["1/2 failing"].result.error == "it does not run"
    assert pool.abandoned == ["endless"]
