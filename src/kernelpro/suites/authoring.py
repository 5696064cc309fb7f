"""An author on a suite: a run of its own for each problem, in the bench's folder, so that whatever was stopped goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelpro.engine import exchanges, session
from kernelpro.engine.loop import Paused
from kernelpro.engine.store import Store
from kernelpro.pools.pool import Pool
from kernelpro.records import BadInput, Result, RunConfig, Status, Verdict, digest
from kernelpro.suites.asking import Report
from kernelpro.suites.ledger import Entry, Ledger
from kernelpro.suites.problems import Problem


@dataclass(frozen=True)
class Assignment:
    """A problem and how it is to be worked on."""

    problem: Problem
    config: RunConfig

    @property
    def key(self) -> str:
        return digest("assignment", self.problem.task.id, session.identity(self.config))


async def work(
    assignments: Sequence[Assignment],
    pool: Pool,
    ledger: Ledger,
    parallel: int,
    report: Report,
    done: Callable[[Assignment], None],
    note: Callable[[str], None] = lambda line: None,
) -> int:
    """All of them, `parallel` at a time; returns how many wait for answers from outside. `note`: what should not be overlooked."""
    gate = asyncio.Semaphore(parallel)

    async def one(assignment: Assignment) -> bool:
        async with gate:
            try:
                ledger.add(await _run(assignment, pool, ledger.folder / "runs", report, note))
            except Paused as paused:
                report(assignment.problem.label, str(paused))
                return False
            done(assignment)
            return True

    finished = await asyncio.gather(*(one(assignment) for assignment in assignments))
    return finished.count(False)


async def _run(
    assignment: Assignment, pool: Pool, home: Path, report: Report, note: Callable[[str], None]
) -> Entry:
    label = assignment.problem.label
    store = session.store_for(home, assignment.config, label)

    def follow(kind: str, data: dict[str, Any]) -> None:
        if kind == "note":
            note(f"{label}: {data['line']}")
        report(label, f"step {data['step']}: {kind}" if "step" in data else str(data.get("stage", kind)))

    try:
        outcome = await session.work(store, pool, follow, explain=False)
        reason = f"run {store.id}: {outcome.reason}"
        if outcome.unanswered:  # what the model can do is not known yet: `--retry` goes on
            result = Result(assignment.key, error=reason)
        elif verdict := outcome.verdict or _failure(store):
            result = Result(assignment.key, verdict=verdict, data={"by": _author(store, outcome.best)})
        else:
            result = Result(assignment.key, data={"reason": reason})
    except BadInput as error:  # the task cannot be scored, or does not run
        result = Result(assignment.key, error=str(error))
    finally:
        steps, seconds = store.steps(), sum(store.device_seconds.values())
        store.close()
    return Entry(assignment.key, result, seconds, exchanges.read(store.folder, steps).total)


def _author(store: Store, step: int | None) -> str:
    """Who wrote the winner: the author, or a compiler."""
    return next((known.author for known in store.steps() if known.number == step), "")


def _failure(store: Store) -> Verdict | None:
    """Where nothing passed: the verdict on the first attempt that was judged."""
    return next(
        (step.verdict for step in store.steps() if step.verdict and step.verdict.status is not Status.PASSED),
        None,
    )
