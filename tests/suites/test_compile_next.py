"""Which references are compiled while a problem of a suite is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest

from kernelpro.pools.pool import CompiledCallback
from kernelpro.records import Candidate, Options, StudyData, Target, Task
from kernelpro.suites.compile_next import CompileNext

pytestmark = pytest.mark.together
TASKS = [Task(f"# {number}", f"task {number}") for number in range(7)]


class Requests:
    """A pool that remembers what it was asked to compile."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failing: set[str] = set()
        self.built: Queue[tuple[str, tuple[Candidate, ...]]] = Queue()
        self.on_built: dict[str, Callable[[], None]] = {}

    def compile_ahead(self, task: Task, target: Target, on_compiled: CompiledCallback) -> None:
        assert target == "cuda"
        self.names.append(task.name)
        on_compiled(None if task.name in self.failing else StudyData(graph_error=task.name))

    def build_ahead(
        self,
        task: Task,
        target: Target,
        options: Options,
        candidates: tuple[Candidate, ...],
        on_built: Callable[[], None],
    ) -> None:
        self.on_built[task.name] = on_built
        self.built.put((task.name, candidates))


def requested(after: Task, options: Options) -> list[str]:
    pool: Any = Requests()
    # several kernels of one problem count once
    problems = [(task, "cuda", options) for task in TASKS for _ in range(3)]
    CompileNext(pool, problems).after(after)  # type: ignore[arg-type]
    return list(pool.names)


def test_the_next_problems_are_compiled_in_their_order() -> None:
    assert requested(TASKS[0], Options()) == [f"task {number}" for number in (1, 2, 3, 4, 5, 6)]
    assert requested(TASKS[5], Options()) == ["task 6"]
    assert requested(TASKS[6], Options()) == []


def test_nothing_is_compiled_where_no_baseline_needs_it() -> None:
    assert requested(TASKS[0], Options(baselines=("eager_fp32",))) == []


def test_the_designs_of_the_next_problems_are_built_once_their_graph_is_known() -> None:
    pool: Any = Requests()

    def designs_of(task: Task, study: StudyData) -> tuple[Candidate, ...]:
        return (Candidate(f"design for {study.graph_error}"),)

    compile_next = CompileNext(pool, [(task, "cuda", Options()) for task in TASKS], designs_of)
    compile_next.after(TASKS[4])
    compile_next.after(TASKS[5])
    assert {pool.built.get(timeout=10) for _ in range(2)} == {
        (f"task {number}", (Candidate(f"design for task {number}"),)) for number in (5, 6)
    }
    assert pool.names == ["task 5", "task 6"] and pool.built.empty(), "nothing is asked for twice"


def test_the_first_problem_that_is_compiled_is_next() -> None:
    pool: Any = Requests()
    compile_next = CompileNext(pool, [(task, "cuda", Options()) for task in TASKS])
    assert compile_next.first_ready(TASKS) == 0, "none is compiled"
    compile_next.after(TASKS[3])
    deadline = time.monotonic() + 10
    while compile_next.first_ready(TASKS[6:]) or compile_next.first_ready(TASKS) != 4:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_problem_whose_designs_are_built_comes_before_one_whose_designs_are_not() -> None:
    pool: Any = Requests()
    compile_next = CompileNext(
        pool, [(task, "cuda", Options()) for task in TASKS], lambda task, study: (Candidate(task.name),)
    )
    compile_next.after(TASKS[3])
    assert {pool.built.get(timeout=10)[0] for _ in range(3)} == {"task 4", "task 5", "task 6"}
    assert compile_next.first_ready(TASKS) == 4, "no designs are built yet: the first that is compiled"
    pool.on_built["task 5"]()
    assert compile_next.first_ready(TASKS) == 5
    pool.on_built["task 4"]()
    assert compile_next.first_ready(TASKS) == 4


def test_other_designs_are_written_while_those_of_a_network_are() -> None:
    pool: Any = Requests()
    network_is_written = threading.Event()

    def designs_of(task: Task, study: StudyData) -> tuple[Candidate, ...]:
        if task.name == "task 5":
            network_is_written.wait(10)
        return (Candidate(task.name),)

    CompileNext(pool, [(task, "cuda", Options()) for task in TASKS], designs_of).after(TASKS[4])
    assert pool.built.get(timeout=5)[0] == "task 6"
    network_is_written.set()
    assert pool.built.get(timeout=5)[0] == "task 5"


def test_a_problem_without_designs_is_ready_when_it_is_compiled() -> None:
    pool: Any = Requests()

    def fail(task: Task, study: StudyData) -> tuple[Candidate, ...]:
        raise RuntimeError("a bug")

    compile_next = CompileNext(pool, [(task, "cuda", Options()) for task in TASKS], fail)
    compile_next.after(TASKS[5])
    deadline = time.monotonic() + 10
    while compile_next.first_ready(TASKS) != 6:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_problem_that_cannot_be_compiled_ahead_comes_last() -> None:
    pool: Any = Requests()
    pool.failing = {"task 4", "task 5"}
    compile_next = CompileNext(pool, [(task, "cuda", Options()) for task in TASKS])
    compile_next.after(TASKS[3])
    deadline = time.monotonic() + 10
    while compile_next.first_ready(TASKS[4:]) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    while compile_next.first_ready([TASKS[4], TASKS[5], TASKS[0]]) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert compile_next.first_ready(TASKS[4:6]) == 0
