"""How well a pool uses many workers: the Ray pool's own scheduler on a simulated cluster of 1 to 256 workers.

The scheduler runs as it is; only the cluster is simulated, with a clock of its own that jumps from event to event. Jobs take what
was recorded on an H200 host: seconds to make a task warm, then seconds for each candidate. Efficiency is useful work (each task
warmed once, each candidate judged once) over workers times the time until the last result. What is missing goes to warming a task
on several workers, to workers that idle at the end, or to the scheduler itself, whose own processor time is measured and added
to the clock. Jobs are handed in as `kernelpro bench` does it, task by task, so many at a time.

    python benchmarks/pool_scaling.py [--tasks 250] [--candidates 75 1] [--workers 1 4 16 64 128 256] [--out FILE]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelpro.pools.ray_pool import RayPool
from kernelpro.records import Candidate, Job, Result, Task
from kernelpro.suites import judging

RECORDED = Path(__file__).parent / "results" / "2026-11-15-h200-examples.json"


def recorded() -> tuple[list[float], float]:
    """Seconds of each judgement on a warm task, and of making a task warm (median), on an H200 host."""
    found = [verdict["measurement"] for verdict in json.loads(RECORDED.read_text())["verdicts"]]
    warm = [sum(s for stage, s in one["preparation_seconds"].items() if stage != "total") for one in found]
    return [
        sum(s for stage, s in one["seconds"].items() if stage != "total") for one in found
    ], statistics.median(warm)


JUDGE_SECONDS, WARM_SECONDS = recorded()


class Cluster:
    """As much of Ray as the pool uses. Time passes in `wait` alone."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, workers: int, seed: int = 0):
        self.workers, self.now, self.busy, self.warmed = workers, 0.0, 0.0, 0
        self._dice = random.Random(seed)
        self._count, self._events = itertools.count(), list[tuple[float, int]]()
        self._values: dict[int, Any] = {}
        self.actors: list[Actor] = []
        self._real = 0.0
        self.scheduling = 0.0

    def remote(self, _: Any) -> Cluster:
        return self

    def options(self, **_: Any) -> Any:
        class Made:
            remote = staticmethod(self._make)

        return Made

    def _make(self, sandbox: str) -> Actor:
        self.actors.append(Actor(self, len(self.actors) < self.workers))
        return self.actors[-1]

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def call(self, at: float, value: Any) -> int:
        number = next(self._count)
        self._values[number] = value
        if at < float("inf"):
            self.happen(at, number)
        return number

    def happen(self, at: float, call: int) -> None:
        heapq.heappush(self._events, (at, call))

    def answer(self, job: Any) -> Any:
        """What a worker says to it; an exception is raised."""
        return Result(job["id"]).dumps()

    def judge_seconds(self) -> float:
        return self._dice.choice(JUDGE_SECONDS)

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        spent = time.thread_time() - self._real
        self.scheduling += spent
        self.now += spent
        ready, known = list[int](), set(calls)
        self.now = max(self.now + timeout, self._events[0][0] if self._events else 0.0)
        while self._events and self._events[0][0] <= self.now:
            ready.append(heapq.heappop(self._events)[1])
        ready = [call for call in ready if call in known]
        self._real = time.thread_time()
        return ready, []

    def get(self, call: int, timeout: float = 0) -> Any:
        value = self._values.pop(call, None)
        if value is None or isinstance(value, Exception):
            raise value or self.exceptions.RayError("it is gone")
        return value

    def kill(self, actor: Actor) -> None:
        """Who was pending may come now."""
        if actor in self.actors:
            self.actors.remove(actor)
            for other in self.actors[: self.workers]:
                other.come()

    def shutdown(self) -> None: ...


class Actor:
    def __init__(self, cluster: Cluster, there: bool):
        self._cluster, self._free, self._task = cluster, 0.0, ""
        self._there = there
        self.hardware, self.run, self.stages = (_Method(f) for f in (self._hardware, self._run, self._stages))

    def _hardware(self) -> int:
        known = {"cuda": "NVIDIA H200", "cpu": "a CPU"}
        self._arrival = self._cluster.call(self._cluster.now if self._there else float("inf"), known)
        return self._arrival

    def come(self) -> None:
        if not self._there:
            self._there = True
            self._cluster.happen(self._cluster.now, self._arrival)

    def _stages(self) -> int:
        return self._cluster.call(self._cluster.now, {})

    def _run(self, line: str) -> int:
        job = json.loads(line)
        seconds = self._cluster.judge_seconds()
        self._cluster.busy += seconds
        if job["task"]["name"] != self._task:
            self._task = job["task"]["name"]
            self._cluster.warmed += 1
            seconds += WARM_SECONDS
        self._free = max(self._free, self._cluster.now) + seconds
        return self._cluster.call(self._free, self._cluster.answer(job))


class _Method:
    def __init__(self, function: Any):
        self.remote = function


class Simulated(RayPool):
    def __init__(self, cluster: Cluster):
        self._simulated = cluster
        super().__init__()

    def _connect(self, address: str) -> None:
        self._ray = self._simulated

    def _now(self) -> float:
        return self._simulated.now

    def _wait_for_jobs(self) -> None:
        self._submitted.wait(0.01)
        self._submitted.clear()
        self._simulated.now += 1.0


class WithoutReports(Simulated):
    """Nobody listens: by its own clock the pool would tell those who wait thousands of times a minute."""

    def _report_queue(self) -> None: ...


def measure(tasks: int, candidates: int, workers: int) -> dict[str, float]:
    cluster = Cluster(workers)
    numbers = [(task, n) for task in range(tasks) for n in range(candidates)]
    jobs = [
        Job(f"{task}/{n}", "judge", Task(f"# {task}", str(task)), Candidate(f"# {n}"), "cuda")
        for task, n in numbers
    ]
    ended = [0.0]
    with WithoutReports(cluster) as pool:
        waiting, done = iter(jobs), threading.Event()
        left = itertools.count(len(jobs) - 1, -1)

        def ask(answered: Any = None) -> None:
            """Called by the scheduler's own thread, while its clock stands."""
            if answered:
                answered.result()
                ended[0] = cluster.now
                if next(left) == 0:
                    done.set()
            if job := next(waiting, None):
                pool.submit(job).add_done_callback(ask)

        with pool._lock:
            for _ in range(judging._MAX_SUBMITTED):
                ask()
        done.wait()
    makespan = ended[0]
    useful = cluster.busy + tasks * WARM_SECONDS
    offered = workers * makespan
    again = (cluster.warmed - tasks) * WARM_SECONDS
    return {
        "tasks": tasks,
        "candidates": candidates,
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
    parser.add_argument(
        "--candidates", type=int, nargs="+", default=[75, 1], help="for each task; several: one case each"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(f"recorded: {statistics.mean(JUDGE_SECONDS):.1f} s a candidate, {WARM_SECONDS:.1f} s a task")
    rows = []
    for candidates in given.candidates:
        print(f"{given.tasks} tasks, {candidates} candidates each")
        for workers in given.workers:
            rows.append(found := measure(given.tasks, candidates, workers))
            parts = ("efficiency", "warmed_again", "idle", "scheduler")
            shares = ", ".join(f"{name.replace('_', ' ')} {found[name]:.1%}" for name in parts)
            print(f"{workers:4d} workers: {found['hours']:6.2f} h; {shares}", flush=True)
    if given.out:
        recorded = {"candidate": statistics.mean(JUDGE_SECONDS), "task": WARM_SECONDS}
        given.out.write_text(json.dumps({"seconds": recorded, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
