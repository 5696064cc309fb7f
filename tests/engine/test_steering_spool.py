"""A run whose jobs go through a spool is steered like any other: at once, also while a job waits for a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine.steered_run import Lab, Requests, Steered, branch, config, kernel

from kernelpro.engine.loop import Engine, Paused, Stopped
from kernelpro.engine.store import RunStore
from kernelpro.pools.spool.entries import result_entry
from kernelpro.pools.spool.folder import LeaseHolder, SpoolFolder
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import Outcome
from kernelpro.records.events import BudgetAdded, KernelPasted, NodePinned, StopRequested

WORKER = LeaseHolder("worker", "a processor", 60.0)


def work(store: RunStore, place: Path, author: Steered, wait: bool = True) -> Outcome:
    """What `kernelpro optimize --pool spool:DIR` does."""
    own, pool = RunStore(store.folder), SpoolPool(place, wait)
    own.lock()
    try:
        return asyncio.run(Engine(own, pool, author).run())
    finally:
        pool.close()
        own.close()


def answer_all(folder: SpoolFolder) -> int:
    """What a worker does with all jobs that are open. Times are exact."""
    jobs = folder.open_jobs()
    for entry in jobs:
        lease = folder.acquire(entry, WORKER)
        assert lease
        folder.add_result(result_entry(entry, Lab().run(entry.job), "worker", "a processor", 0.1))
        folder.release(lease)
    return len(jobs)


@contextmanager
def working(place: Path) -> Iterator[None]:
    """A worker beside the run."""
    ended, folder = threading.Event(), SpoolFolder(place)

    def serve() -> None:
        while not ended.wait(0.02):
            answer_all(folder)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    ended.set()
    thread.join()


def test_a_run_in_a_spool_is_stopped_steered_and_resumed(tmp_path: Path) -> None:
    place = tmp_path / "spool"
    store = RunStore.create(tmp_path / "runs", config("greedy", 3), "demo")
    asking = threading.Timer(0.5, lambda: Requests(store, {0: [StopRequested()]})(0))
    asking.start()
    with pytest.raises(Stopped):  # no worker has taken the first job
        work(store, place, Steered())
    assert store.state() == "stopped"

    source = store.save_source(kernel(0.07))
    requests = Requests(store, {2: [NodePinned(1), KernelPasted(source, 1, "mine"), BudgetAdded(2)]})
    with working(place):
        outcome = work(store, place, Steered(requests))
    steps = store.steps()
    mine = next(step for step in steps if step.pasted)
    assert (mine.parent, mine.ms, outcome.best) == (1, 0.07, mine.number)
    assert len([step for step in steps if not step.pasted]) == 5, "three, and two that were added"
    assert {step.number for step in steps[2:]} <= branch(steps, 1)


def test_requests_reach_a_run_that_waits_for_results_from_elsewhere(tmp_path: Path) -> None:
    """Without --wait no process works on it: the next one applies them."""
    place = tmp_path / "spool"
    store = RunStore.create(tmp_path / "runs", config("greedy", 2), "demo")
    requests = Requests(store, {0: [KernelPasted(store.save_source(kernel(0.07)), 0, "mine")]})
    for trip in range(20):
        try:
            work(store, place, Steered(), wait=False)
            break
        except Paused:
            assert store.state() == "waiting"
            if trip == 0:
                requests(0)
            assert answer_all(SpoolFolder(place))
    assert [step.ms for step in store.steps() if step.pasted] == [0.07] and store.state() == "finished"
