"""Measure how well the Ray pool's scheduler uses 1 to 256 workers, on a simulated cluster.

    python benchmarks/pool_scaling.py [--tasks 250] [--candidates 75 1] [--workers 1 16 64] [--out FILE]

The scheduler is the real one; only the cluster is simulated, with a clock that jumps from event to event.
Job times were recorded on an H200 host: seconds to prepare a task, then seconds for each candidate. Jobs
are submitted as `kernelpro bench` does, task by task, a fixed number at a time.

Efficiency is useful work (each task prepared once, each candidate judged once) over workers times the time
until the last result. The rest is split into preparing a task on several workers, idle workers, and the
scheduler, whose CPU time is measured and added to the clock.
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


def recorded_seconds() -> tuple[list[float], float]:
    """Seconds of each judgement on a prepared task, and median seconds to prepare a task, on an H200 host."""
    measurements = [verdict["measurement"] for verdict in json.loads(RECORDED.read_text())["verdicts"]]

    def total(stages: dict[str, float]) -> float:
        return sum(seconds for stage, seconds in stages.items() if stage != "total")

    prepare = statistics.median(total(measurement["preparation_seconds"]) for measurement in measurements)
    return [total(measurement["seconds"]) for measurement in measurements], prepare


JUDGE_SECONDS, PREPARE_SECONDS = recorded_seconds()


class Cluster:
    """The part of Ray's API that the pool uses. Time passes only in `wait`."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, workers: int, seed: int = 0):
        self.workers, self.now, self.busy, self.prepared_tasks = workers, 0.0, 0.0, 0
        self._rng = random.Random(seed)
        self._count, self._events = itertools.count(), list[tuple[float, int]]()
        self._values: dict[int, Any] = {}
        self.actors: list[Actor] = []
        self._scheduler_started = 0.0
        self.scheduling = 0.0

    def remote(self, _: Any) -> Cluster:
        return self

    def options(self, **_: Any) -> Any:
        class ActorFactory:
            remote = staticmethod(self._make)

        return ActorFactory

    def _make(self, sandbox: str) -> Actor:
        self.actors.append(Actor(self, len(self.actors) < self.workers))
        return self.actors[-1]

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def call(self, at: float, value: Any) -> int:
        """Register a call that returns `value` at a time; infinity: not yet."""
        number = next(self._count)
        self._values[number] = value
        if at < float("inf"):
            self.schedule(at, number)
        return number

    def schedule(self, at: float, call: int) -> None:
        """Make a call return at a time."""
        heapq.heappush(self._events, (at, call))

    def answer(self, job: Any) -> Any:
        """A worker's result of the job; exceptions are raised by `get`."""
        return Result(job["id"]).dumps()

    def judge_seconds(self) -> float:
        """A recorded duration, drawn at random."""
        return self._rng.choice(JUDGE_SECONDS)

    def wait(self, calls: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        """Advance the clock to the next event; returns the calls that are done."""
        spent = time.thread_time() - self._scheduler_started
        self.scheduling += spent
        self.now += spent
        ready, pending = list[int](), set(calls)
        self.now = max(self.now + timeout, self._events[0][0] if self._events else 0.0)
        while self._events and self._events[0][0] <= self.now:
            ready.append(heapq.heappop(self._events)[1])
        ready = [call for call in ready if call in pending]
        self._scheduler_started = time.thread_time()
        return ready, []

    def get(self, call: int, timeout: float = 0) -> Any:
        """The value of a call, or its exception."""
        value = self._values.pop(call, None)
        if value is None or isinstance(value, Exception):
            raise value or self.exceptions.RayError("the actor is gone")
        return value

    def kill(self, actor: Actor) -> None:
        """Remove an actor; a pending one may start in its place."""
        if actor in self.actors:
            self.actors.remove(actor)
            for other in self.actors[: self.workers]:
                other.start()

    def shutdown(self) -> None: ...


class Actor:
    """A worker: it starts at once or when there is room for it."""

    def __init__(self, cluster: Cluster, started: bool):
        self._cluster, self._free, self._task = cluster, 0.0, ""
        self._started = started
        self.hardware, self.run, self.stages = (_Method(f) for f in (self._hardware, self._run, self._stages))

    def _hardware(self) -> int:
        hardware = {"cuda": "NVIDIA H200", "cpu": "a CPU"}
        self._arrival = self._cluster.call(self._cluster.now if self._started else float("inf"), hardware)
        return self._arrival

    def start(self) -> None:
        """Start a pending actor."""
        if not self._started:
            self._started = True
            self._cluster.schedule(self._cluster.now, self._arrival)

    def _stages(self) -> int:
        return self._cluster.call(self._cluster.now, {})

    def _run(self, line: str) -> int:
        job = json.loads(line)
        seconds = self._cluster.judge_seconds()
        self._cluster.busy += seconds
        if job["task"]["name"] != self._task:
            self._task = job["task"]["name"]
            self._cluster.prepared_tasks += 1
            seconds += PREPARE_SECONDS
        self._free = max(self._free, self._cluster.now) + seconds
        return self._cluster.call(self._free, self._cluster.answer(job))


class _Method:
    def __init__(self, function: Any):
        self.remote = function


class SimulatedPool(RayPool):
    """The Ray pool on a simulated cluster."""

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


class SilentPool(SimulatedPool):
    """Does not report its queue: on the simulated clock it would do so thousands of times a minute."""

    def _report_queue(self) -> None: ...


def measure(tasks: int, candidates: int, workers: int) -> dict[str, float]:
    """Simulate a suite on so many workers; returns its row of the table."""
    cluster = Cluster(workers)
    numbers = itertools.product(range(tasks), range(candidates))
    jobs = [
        Job(f"{task}/{number}", "judge", Task(f"# {task}", str(task)), Candidate(f"# {number}"), "cuda")
        for task, number in numbers
    ]
    last_result = [0.0]
    with SilentPool(cluster) as pool:
        unsubmitted, done = iter(jobs), threading.Event()
        remaining = itertools.count(len(jobs) - 1, -1)

        def submit_next(finished: Any = None) -> None:
            """Submit the next job. The scheduler's thread calls this while the clock stands still."""
            if finished:
                finished.result()
                last_result[0] = cluster.now
                if next(remaining) == 0:
                    done.set()
            if job := next(unsubmitted, None):
                pool.submit(job).add_done_callback(submit_next)

        with pool._lock:
            for _ in range(judging._MAX_SUBMITTED):
                submit_next()
        done.wait()
    makespan = last_result[0]
    useful = cluster.busy + tasks * PREPARE_SECONDS
    capacity = workers * makespan
    repeated = (cluster.prepared_tasks - tasks) * PREPARE_SECONDS
    return {
        "tasks": tasks,
        "candidates": candidates,
        "workers": workers,
        "hours": makespan / 3600,
        "efficiency": useful / capacity,
        "prepared_again": repeated / capacity,
        "scheduler": cluster.scheduling / makespan,
        "idle": 1 - (useful + repeated) / capacity,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=250, help="tasks of the suite")
    parser.add_argument(
        "--candidates", type=int, nargs="+", default=[75, 1], help="per task; several values: one case each"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 4, 16, 64, 128, 256], help="workers of the cluster"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows here, as JSON")
    arguments = parser.parse_args()
    per_candidate = statistics.mean(JUDGE_SECONDS)
    print(f"recorded: {per_candidate:.1f} s per candidate, {PREPARE_SECONDS:.1f} s to prepare a task")
    rows = []
    for candidates in arguments.candidates:
        print(f"{arguments.tasks} tasks, {candidates} candidates each")
        for workers in arguments.workers:
            rows.append(row := measure(arguments.tasks, candidates, workers))
            parts = ("efficiency", "prepared_again", "idle", "scheduler")
            shares = ", ".join(f"{name.replace('_', ' ')} {row[name]:.1%}" for name in parts)
            print(f"{workers:4d} workers: {row['hours']:6.2f} h; {shares}", flush=True)
    if arguments.out:
        recorded = {"candidate": per_candidate, "task": PREPARE_SECONDS}
        arguments.out.write_text(json.dumps({"seconds": recorded, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
