"""How well a pool uses many workers: the Ray pool's own scheduler on a simulated cluster of 1 to 256 workers.

The scheduler runs as it is; only the cluster is simulated, with a clock of its own that jumps from event to event. Jobs take what
was recorded on an H200 host: seconds to make a task warm, then seconds for each candidate. Efficiency is useful work (each task
warmed once, each candidate judged once) over workers times the time until the last result. What is missing goes to warming a task
on several workers, to workers that idle at the end, or to the scheduler itself, whose own processor time is measured and added
to the clock.

    python benchmarks/pool_scaling.py [--tasks 250] [--candidates 75] [--workers 1 4 16 64 128 256]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelpro.pools import on_ray
from kernelpro.records import Candidate, Job, Result, Task

RECORDED = Path(__file__).parent / "results" / "2026-11-15-h200-examples.json"


def recorded() -> tuple[list[float], float]:
    """Seconds of each judgement on a warm task, and of making a task warm (median), on an H200 host."""
    found = [verdict["measurement"] for verdict in json.loads(RECORDED.read_text())["verdicts"]]
    warm = [sum(s for stage, s in one["preparation_seconds"].items() if stage != "total") for one in found]
    return [sum(s for stage, s in one["seconds"].items() if stage != "total") for one in found], statistics.median(warm)


JUDGE_SECONDS, WARM_SECONDS = recorded()


class Cluster:
    """As much of Ray as the pool uses. Time passes in `wait` alone."""

    class exceptions:
        class RayActorError(Exception): ...

        class RayTaskError(Exception): ...

        class RayError(Exception): ...

    def __init__(self, workers: int, seed: int = 0):
        self.workers, self.now, self.busy, self.warmed = workers, 0.0, 0.0, 0
        self._dice = random.Random(seed)
        self._count, self._events = itertools.count(), list[tuple[float, int]]()
        self._values: dict[int, Any] = {}
        self._actors = 0
        self._real = 0.0
        self.scheduling = 0.0

    def remote(self, _: Any) -> Cluster:
        return self

    def options(self, **_: Any) -> Any:
        self._actors += 1
        there = self._actors <= self.workers

        class Made:
            remote = staticmethod(lambda sandbox: Actor(self, there))

        return Made

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def call(self, at: float, value: Any) -> int:
        number = next(self._count)
        self._values[number] = value
        if at < float("inf"):
            heapq.heappush(self._events, (at, number))
        return number

    def judge_seconds(self) -> float:
        return self._dice.choice(JUDGE_SECONDS)

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        spent = time.thread_time() - self._real
        self.scheduling += spent
        self.now += spent
        ready = []
        if self._events:
            self.now = max(self.now, self._events[0][0])
            while self._events and self._events[0][0] <= self.now:
                ready.append(heapq.heappop(self._events)[1])
        self._real = time.thread_time()
        return ready, []

    def get(self, call: int) -> Any:
        return self._values.pop(call)

    def kill(self, _: Any) -> None: ...

    def shutdown(self) -> None: ...


class Actor:
    def __init__(self, cluster: Cluster, there: bool):
        self._cluster, self._free, self._task = cluster, 0.0, ""
        self._there = there
        self.hardware, self.do, self.stages = (_Method(f) for f in (self._hardware, self._do, self._stages))

    def _hardware(self) -> int:
        return self._cluster.call(self._cluster.now if self._there else float("inf"), {"cuda": "NVIDIA H200", "cpu": "a CPU"})

    def _stages(self) -> int:
        return self._cluster.call(self._cluster.now, {})

    def _do(self, line: str) -> int:
        job = json.loads(line)
        seconds = self._cluster.judge_seconds()
        self._cluster.busy += seconds
        if job["task"]["name"] != self._task:
            self._task = job["task"]["name"]
            self._cluster.warmed += 1
            seconds += WARM_SECONDS
        self._free = max(self._free, self._cluster.now) + seconds
        return self._cluster.call(self._free, Result(job["id"], data={}).dumps())


class _Method:
    def __init__(self, function: Any):
        self.remote = function


class Simulated(on_ray.RayPool):
    def __init__(self, cluster: Cluster):
        self._simulated = cluster
        super().__init__()

    def _join(self, address: str) -> None:
        self._ray = self._simulated


def measure(tasks: int, candidates: int, workers: int) -> dict[str, float]:
    cluster = Cluster(workers)
    numbers = [(task, n) for task in range(tasks) for n in range(candidates)]
    jobs = [Job(f"{task}/{n}", "judge", Task(f"# {task}", str(task)), Candidate(f"# {n}"), "cuda") for task, n in numbers]
    with Simulated(cluster) as pool:
        answers = [pool.submit(job) for job in jobs]
        for answer in answers:
            answer.result()
        makespan = cluster.now
    useful = cluster.busy + tasks * WARM_SECONDS
    offered = workers * makespan
    again = (cluster.warmed - tasks) * WARM_SECONDS
    return {
        "workers": workers,
        "hours": makespan / 3600,
        "efficiency": useful / offered,
        "warmed_again": again / offered,
        "scheduler": cluster.scheduling / makespan,
        "idle": 1 - (useful + again) / offered,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--candidates", type=int, default=75)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256])
    given = parser.parse_args()
    each = f"{statistics.mean(JUDGE_SECONDS):.1f} s a candidate, {WARM_SECONDS:.1f} s a task"
    print(f"{given.tasks} tasks, {given.candidates} candidates each; recorded: {each}")
    for workers in given.workers:
        found = measure(given.tasks, given.candidates, workers)
        parts = ("efficiency", "warmed_again", "idle", "scheduler")
        shares = ", ".join(f"{name.replace('_', ' ')} {found[name]:.1%}" for name in parts)
        print(f"{workers:4d} workers: {found['hours']:6.2f} h; {shares}", flush=True)


if __name__ == "__main__":
    main()
