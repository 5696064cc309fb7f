"""A run with exact times that is steered from outside: while the author writes a step, requests reach the store.

As a program, it kills itself with SIGKILL while a step is being written:
    python steered_run.py RUNS_DIR RUN STEP
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import Job, Limits, Outcome, RunConfig, Status, Step, Task, Verdict
from kernelpro.records.events import BranchClosed, HintGiven, KernelPasted, NodePinned, RunEvent


class Lab(KnownLab):
    """A kernel takes as many milliseconds as it says; one that says 0 is wrong."""

    def verdict(self, job: Job, source: str) -> Verdict:
        ms = float(re.findall(r"MS = (\S+)", source)[0])
        return verdict(ms) if ms else Verdict("k", Status.WRONG, "off")


def kernel(ms: float) -> str:
    return f"MS = {ms}\n\n\nclass ModelNew:\n    pass\n"


class Steered(Author):
    """Writes kernels of different speed. `on_write` is called with the step while it is being written."""

    name = "script"

    def __init__(self, on_write: Callable[[int], None] = lambda step: None):
        self.asked: dict[int, Assignment] = {}
        self._on_write = on_write

    async def write(self, assignment: Assignment) -> Draft:
        self.asked[assignment.step] = assignment
        self._on_write(assignment.step)
        await asyncio.sleep(0)
        ms = 0.0 if assignment.step % 5 == 4 else 0.2 + assignment.step * 7 % 10 / 20
        return Draft(kernel(ms), plan=f"version {assignment.step}")


def config(policy: str = "mcts", candidates: int = 12, **more: object) -> RunConfig:
    settings: dict[str, object] = {"finalists": 0, "concurrency": 1, "knowledge": False}
    settings["limits"] = Limits(candidates, stop_at_floor=0.0)
    return RunConfig(Task("", "demo"), "cpu", "script", policy=policy, **(settings | more))  # type: ignore[arg-type]


def work(store: RunStore, author: Author, lab: KnownLab | None = None) -> Outcome:
    return asyncio.run(Engine(store, lab or Lab(), author).run())  # type: ignore[arg-type]


class Requests:
    """Adds requests to a store through a connection of its own, as another process would."""

    def __init__(self, store: RunStore, requests: dict[int, list[RunEvent]]):
        self.store, self._requests = RunStore(store.folder), requests

    def __call__(self, step: int) -> None:
        for event in self._requests.get(step, []):
            self.store.add_event(event)


def many_requests(store: RunStore) -> dict[int, list[RunEvent]]:
    """One of most kinds, by the step during which it arrives."""
    source = store.save_source(kernel(0.11))
    return {
        3: [HintGiven("use wider tiles")],
        5: [BranchClosed(1), KernelPasted(source, 2, "mine")],
        8: [NodePinned(6)],
        12: [NodePinned(0)],
    }


def tree(store: RunStore) -> list[object]:
    return [(s.number, s.parent, s.action, s.source, s.state, s.author) for s in store.steps()]


def branch(steps: list[Step], root: int) -> set[int]:
    """The steps below a step, itself included."""
    inside = {root}
    for step in steps:
        if step.parent in inside:
            inside.add(step.number)
    return inside


if __name__ == "__main__":
    store = RunStore.open(Path(sys.argv[1]), sys.argv[2])
    requests = Requests(store, many_requests(store))

    def on_write(step: int) -> None:
        if step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        requests(step)

    work(store, Steered(on_write))
