"""Shared fixtures: one warm worker for the whole run, and the `gpu` mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelpro.lab.jobs import Worker
from kernelpro.lab.judge.cell import Nursery

sys.path.insert(0, str(Path(__file__).parent))

from court import Court


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


@pytest.fixture(scope="session")
def court(worker: Worker) -> Court:
    return Court(worker)
