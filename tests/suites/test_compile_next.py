"""Which references are compiled while a problem of a suite is measured."""

from __future__ import annotations

from typing import Any

import pytest

from kernelpro.records import Options, Target, Task
from kernelpro.suites.compile_next import CompileNext

pytestmark = pytest.mark.together
TASKS = [Task(f"# {number}", f"task {number}") for number in range(7)]


class Requests:
    """A pool that remembers what it was asked to compile."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def compile_ahead(self, task: Task, target: Target) -> None:
        assert target == "cuda"
        self.names.append(task.name)


def requested(after: Task, options: Options) -> list[str]:
    pool: Any = Requests()
    # several kernels of one problem count once
    problems = [(task, "cuda", options) for task in TASKS for _ in range(3)]
    CompileNext(pool, problems).after(after)  # type: ignore[arg-type]
    return list(pool.names)


def test_the_next_problems_are_compiled_in_their_order() -> None:
    assert requested(TASKS[0], Options()) == [f"task {number}" for number in (1, 2, 3, 4)]
    assert requested(TASKS[5], Options()) == ["task 6"]
    assert requested(TASKS[6], Options()) == []


def test_nothing_is_compiled_where_no_baseline_needs_it() -> None:
    assert requested(TASKS[0], Options(baselines=("eager_fp32",))) == []
