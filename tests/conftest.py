"""Shared fixtures: one warm worker for the whole run, and the `gpu` mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelpro.lab.jobs import Worker
from kernelpro.lab.judge.cell import Nursery
from kernelpro.records import Candidate, Job, Options, Precision, Target, Task, Verdict

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def worker(nursery: Nursery) -> Iterator[Worker]:
    worker = Worker(nursery, lambda record: None)
    yield worker
    worker.close()


class Court:
    """Short for judging one file in tests: quick, eager baseline only."""

    def __init__(self, worker: Worker):
        self._worker = worker

    def judge(self, task: Task, candidate: Candidate, target: Target = "cpu", **options: object) -> Verdict:
        settings: dict[str, object] = {"effort": "quick", "baselines": ("eager_fp32",), "call_timeout": 10.0, "build_timeout": 60.0}
        job = Job("test", "judge", task, candidate, target, Options(**(settings | options)))  # type: ignore[arg-type]
        result = self._worker.run(job)
        assert result.verdict is not None, result.error
        return result.verdict

    def judge_files(self, task: Path, candidate: Path, precision: Precision | None = None, **more: object) -> Verdict:
        return self.judge(Task.from_file(task, precision=precision), Candidate.from_file(candidate), **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def court(worker: Worker) -> Court:
    return Court(worker)
