"""The searches of a suite, with a pool that runs nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.design_race import designs_ahead
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Job, Options, Result, RunConfig, StudyData, Task
from kernelpro.suites.design_writers import WriterProcesses, WritersClosed
from kernelpro.suites.problems import Problem
from kernelpro.suites.results_log import ResultsLog
from kernelpro.suites.searching import BenchSearch, run_searches

pytestmark = pytest.mark.together
TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(256, 512)]
def get_init_inputs():
    return []
"""


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


def test_another_process_writes_designs_and_the_run_goes_on_with_their_author() -> None:
    task = Task(TASK, "task")
    config = RunConfig(task, "cuda", "playbook", race=1)
    graph = operator_graph(Reference(task, "cpu", 0), 1)
    study = StudyData(graph, precision="tf32", capability="9.0")
    writers = WriterProcesses()
    try:
        author, designs = writers.write(config, study)
    finally:
        writers.close()
    assert len(designs) >= 2 and all("class ModelNew" in design.source for design in designs)

    def fail(*_: object) -> Any:
        raise AssertionError("it writes again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Playbook, "_write_seeds", fail)
        assert designs_ahead(author, config, study) == designs
    with pytest.raises(WritersClosed):
        writers.write(config, study)
