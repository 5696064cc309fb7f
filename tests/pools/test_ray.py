"""A real Ray cluster of two nodes, both on this machine, one of which is stopped half-way; workers are killed all the time."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spooling import building, judging

from kernelpro.pools.by_name import pool
from kernelpro.records import BadInput, Candidate, Job, Progress, Status

JOBS = 200
KILL_EVERY = 3.0
"""Seconds; and never before a fifth was answered since the last time, however slowly workers start here."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def job(number: int) -> Job:
    """Every third does not compile; so right answers differ."""
    asked = building(number)
    if number % 3:
        return asked
    assert asked.candidate
    return replace(asked, candidate=Candidate(asked.candidate.source.replace("return", "retrun"), asked.candidate.name))


def actors() -> list[int]:
    """Processes of our actors, however Ray has named them since."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::Actor"):
            found.append(int(folder.name))
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Killer(threading.Thread):
    """SIGKILL to one of those at work, every few seconds."""

    def __init__(self, called: list[str]) -> None:
        super().__init__(daemon=True)
        self._called = called
        self.killed: list[int] = []
        self.enough = threading.Event()

    def run(self) -> None:
        before = 0
        while not self.enough.wait(KILL_EVERY):
            victims = [pid for pid in actors() if pid not in self.killed]
            if victims and len(self._called) >= before + JOBS // 5:
                before = len(self._called)
                self.killed.append(random.choice(victims))
                os.kill(self.killed[-1], signal.SIGKILL)


def test_all_are_answered_once_and_rightly_whatever_dies(cluster: Any) -> None:
    second = cluster.add_node(num_cpus=1)
    jobs = [job(number) for number in range(JOBS)]
    called: list[str] = []
    killer = Killer(called)
    with pool(f"ray:{cluster.address}") as there:
        answers = [there.submit(one) for one in jobs]
        for answer in answers:
            answer.add_done_callback(lambda future: called.append(future.result().job))
        assert there.outstanding == JOBS
        until(lambda: bool(called))
        killer.start()
        until(lambda: len(called) >= JOBS // 2)
        cluster.remove_node(second)
        results = [answer.result(timeout=300) for answer in answers]
        killer.enough.set()
        killer.join()
        assert there.outstanding == 0
    assert sorted(called) == sorted(one.id for one in jobs), "each is answered once"
    wrong = [r for n, r in enumerate(results) if (r.data or {}).get("status") != ("built" if n % 3 else "build_failed")]
    assert not wrong
    assert killer.killed, "nobody was killed"


def test_judging_is_the_same_there(cluster: Any) -> None:
    stages: list[str] = []
    with pool(f"ray:{cluster.address}") as there:
        answers = [there.submit(judging(factor, factor), lambda step: stages.append(step.stage)) for factor in "23"]
        right, wrong = (answer.result(timeout=200).verdict for answer in answers)
    assert right and right.status is Status.PASSED and right.candidate == "2"
    assert wrong and wrong.status is Status.WRONG
    assert any(stage.startswith("waiting with") for stage in stages), "the queue can be seen"


def test_nobody_waits_for_a_pool_that_has_failed(cluster: Any) -> None:
    def fails(step: Progress) -> None:
        raise OSError("no space left")

    with pool(f"ray:{cluster.address}") as there:
        answers = [there.submit(job(1), fails), there.submit(job(2))]
        for answer in answers:
            with pytest.raises(BadInput, match=r"works no longer \(OSError: no space left"):
                answer.result(timeout=100)
        with pytest.raises(BadInput, match="works no longer"):
            there.submit(job(3))
