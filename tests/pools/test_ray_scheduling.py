"""The Ray pool's own scheduler on a simulated cluster, whose clock jumps from event to event (benchmarks/pool_scaling.py)."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from pool_scaling import Cluster, SimulatedPool, measure

from kernelpro.pools import local, ray_pool
from kernelpro.records import BadInput, Candidate, Job, Result, Task
from kernelpro.suites import judging

pytestmark = pytest.mark.together


def job(task: str, number: int = 0) -> Job:
    return Job(f"{task}/{number}", "judge", Task(f"# {task}", task), Candidate(f"# {number}"), "cuda")


def ask(pool: SimulatedPool, jobs: list[Job]) -> list[Future[Result]]:
    """All at the same moment of the simulated clock."""
    with pool._lock:
        return [pool.submit(one) for one in jobs]


def until(condition: Callable[[], bool], deadline: float = 60) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_64_workers_are_used_well_by_a_suite_with_one_kernel_a_task() -> None:
    assert measure(tasks=800, candidates=1, workers=64)["efficiency"] >= 0.9


@pytest.mark.long  # one more of a kind
def test_64_workers_are_used_well_by_a_suite_with_many_kernels_a_task() -> None:
    assert measure(tasks=250, candidates=75, workers=64)["efficiency"] >= 0.9


def test_each_task_is_worth_a_worker_and_a_suite_fills_the_largest_pool() -> None:
    cluster = Cluster(128)
    with SimulatedPool(cluster) as pool:
        for answer in ask(pool, [job(str(n)) for n in range(100)]):
            answer.result(timeout=60)
        assert len(cluster.actors) == 100
    assert judging._MAX_SUBMITTED >= ray_pool.MAX_ACTORS * ray_pool.MAX_SENT


class Faulty(Cluster):
    """Answers the first calls for a job with these errors."""

    def __init__(self, workers: int, **errors: list[Exception]):
        super().__init__(workers)
        self._errors = errors

    def answer(self, job: Any) -> Any:
        left = self._errors.get(job["task"]["name"], [])
        return left.pop(0) if left else super().answer(job)

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": self.workers}


def test_an_answer_that_ray_lost_costs_an_attempt_not_the_pool() -> None:
    gone = Cluster.exceptions.RayError("ObjectReconstructionFailedError")
    with SimulatedPool(Faulty(2, large=[gone], cursed=[gone] * 99)) as pool:
        large, cursed, other = ask(pool, [job("large"), job("cursed"), job("other")])
        assert large.result(timeout=60).data is None and other.result(timeout=60).data is None
        verdict = cursed.result(timeout=60).verdict
        assert verdict and "10 workers died or vanished" in verdict.reason


class Stillborn(Cluster):
    def call(self, at: float, value: Any) -> int:
        starts = isinstance(value, dict) and "cuda" in value
        return super().call(
            at, self.exceptions.RayError("RuntimeEnvSetupError: no space left") if starts else value
        )


def test_workers_that_never_start_end_the_waiting() -> None:
    with SimulatedPool(Stillborn(4)) as pool:
        (answer,) = ask(pool, [job("a")])
        with pytest.raises(
            BadInput, match="32 workers in a row did not start: RuntimeEnvSetupError: no space left"
        ):
            answer.result(timeout=60)


def sick() -> Exception:
    error = Cluster.exceptions.RayTaskError("sick")
    error.cause = local.DeviceFailed("sick")  # type: ignore[attr-defined]
    return error


def test_a_job_goes_on_where_the_gpu_is_well() -> None:
    cluster = Faulty(2, a=[sick()])
    with SimulatedPool(cluster) as pool:
        (answer,) = ask(pool, [job("a")])
        assert answer.result(timeout=60).data is None
        assert sum(actor.failed for actor in pool._actors) == 1


def test_nobody_waits_for_a_cluster_whose_gpus_have_all_failed() -> None:
    stages: list[str] = []
    with SimulatedPool(Faulty(1, a=[sick()])) as pool:
        answer = pool.submit(job("a"), lambda step: stages.append(step.stage))
        with pytest.raises(BadInput, match=r"all GPUs of the cluster \(1\) failed their health checks"):
            answer.result(timeout=60)
    assert stages[-1] == "queued with 0 others; 0 workers are running; GPUs that failed: 1"


def test_workers_that_nobody_needs_are_let_go() -> None:
    cluster = Cluster(4)
    with SimulatedPool(cluster) as pool:
        for answer in ask(pool, [job(str(n)) for n in range(20)]):
            answer.result(timeout=60)
        until(lambda: not cluster.actors)  # neither those that are idle nor those that are pending
        (again,) = ask(pool, [job("again")])
        assert again.result(timeout=60).data is None


def test_a_small_task_does_not_wait_for_all_of_a_large_one() -> None:
    order: list[str] = []
    with SimulatedPool(Cluster(1)) as pool:
        answers = ask(pool, [*(job("large", n) for n in range(500)), *(job("small", n) for n in range(3))])
        for answer in answers:
            answer.add_done_callback(lambda future: order.append(future.result().job))
        for answer in answers:
            answer.result(timeout=60)
    assert order.index("small/2") < ray_pool.FIRST_TURN + 3
    assert order.index("large/499") == 502
    tasks = [name.partition("/")[0] for name in order]
    assert sum(one != other for one, other in itertools.pairwise(tasks)) == 2, "made warm again once"


class Silent(Cluster):
    """The first worker stops: it neither answers nor gives signs of life."""

    def call(self, at: float, value: Any) -> int:
        stopped = not self.let_go and "cuda" not in value
        return super().call(float("inf") if stopped else at, value)

    let_go = 0

    def kill(self, actor: Any) -> None:
        self.let_go += 1
        super().kill(actor)


def test_a_worker_without_a_sign_of_life_is_replaced() -> None:
    cluster = Silent(1)
    heard: list[str] = []
    with SimulatedPool(cluster) as pool:
        pool._warn = heard.append
        (answer,) = ask(pool, [job("a")])
        assert json.loads(answer.result(timeout=60).dumps())["job"] == "a/0"
        assert heard == ["a worker sent no heartbeat for 120 s and is replaced"]
