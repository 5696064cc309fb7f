"""The playbook in a run, with a fake pool: how often it is asked, and why it has nothing to offer."""

from __future__ import annotations

import asyncio
import threading
import zlib
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from authors.playbook_harness import make_task, operator_graph_of
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import source_fingerprint
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    BaselineSeed,
    Job,
    Limits,
    Outcome,
    Result,
    RunConfig,
    Status,
    StudyData,
    Task,
    Verdict,
)

pytestmark = pytest.mark.together
NORM = make_task("F.layer_norm(a + b, (64,))", "torch.randn(8, 64), torch.randn(8, 64)")
COMPILED = BaselineSeed("compile", "torch.compile", "compiled = 1")


class Lab(KnownLab):
    """Every kernel takes half of what the baseline does; the task's operators are known, or why they are not."""

    def __init__(self, given: Task | None, compiled: bool = False, broken: bool = False):
        self._graph = operator_graph_of(given) if given else None
        self.seeds, self._broken = (COMPILED,) * compiled, broken

    def verdict(self, job: Job, source: str) -> Verdict:
        return Verdict("k", Status.WRONG, "off by one") if self._broken else verdict(0.5)

    def _result(self, job: Job) -> Result:
        result = super()._result(job)
        if isinstance(result.data, StudyData):
            error = "" if self._graph else "it returns a string"
            return replace(result, data=replace(result.data, graph=self._graph, graph_error=error))
        return result


def run(home: Path, lab: Lab, candidates: int = 9, concurrency: int = 2) -> tuple[Outcome, RunStore]:
    limits = Limits(candidates)
    config = RunConfig(
        NORM,
        "cpu",
        "playbook",
        limits=limits,
        tune_points=0,
        finalists=0,
        knowledge=False,
        concurrency=concurrency,
    )
    store = RunStore.create(home, config, "demo")
    return asyncio.run(Engine(store, lab, Playbook()).run()), store  # type: ignore[arg-type]


@pytest.mark.parametrize("compiled", [True, False])
def test_no_more_designs_are_asked_for_than_there_are(compiled: bool, tmp_path: Path) -> None:
    outcome, store = run(tmp_path, Lab(NORM, compiled), concurrency=1)
    steps = [step for step in store.steps() if step.author != "torch.compile"]
    assert [step.action for step in steps[:4]] == ["seed", "seed", "seed", "improve"], (
        "the fourth would be a step by nobody"
    )
    steps = [step for step in steps if step.source]
    codes = [source_fingerprint(store.source(step.source)) for step in steps]
    assert len(set(codes)) == len(codes) and outcome.reason == "the budget of 9 candidates is spent"


def test_designs_that_fail_are_mended_when_no_fresh_one_is_left(tmp_path: Path) -> None:
    outcome, store = run(tmp_path, Lab(NORM, broken=True), 6)
    assert "debug" in {step.action for step in store.steps()} and outcome.best is None


@pytest.mark.parametrize("compiled", [True, False])
def test_a_task_that_cannot_be_read_is_asked_about_once_and_the_reason_said(
    compiled: bool, tmp_path: Path
) -> None:
    outcome, store = run(tmp_path, Lab(None, compiled))
    assert len([step for step in store.steps() if not step.source]) == 1
    assert "could not be read: it returns a string" in outcome.reason


class Uneven(Lab):
    """Kernels differ in speed, by `luck`; and some diagnoses come late, `late` says which: the author is asked out of turn."""

    def __init__(self, given: Task, luck: str, late: int):
        super().__init__(given)
        self._luck, self._late = luck, late

    def verdict(self, job: Job, source: str) -> Verdict:
        return verdict(0.2 + 0.6 * (zlib.crc32(f"{self._luck}{source}".encode()) % 1000) / 1000)

    def submit(self, job: Job, progress: Any = None) -> Future[Result]:
        if job.kind != "profile" or zlib.crc32(job.dumps().encode()) % 2 != self._late:
            return super().submit(job, progress)
        answer: Future[Result] = Future()
        threading.Timer(0.05, answer.set_result, [self._result(job)]).start()
        return answer


@pytest.mark.parametrize("luck", ["1", "2"])
def test_steps_in_flight_take_different_moves_and_the_same_ones_whoever_is_faster(
    luck: str, tmp_path: Path
) -> None:
    taken = []
    for late in (0, 1):
        _, store = run(tmp_path / str(late), Uneven(NORM, luck, late), candidates=24, concurrency=4)
        steps = store.steps()
        assert not [step.number for step in steps if step.state == "duplicate"]
        taken.append([(step.parent, step.plan, step.source) for step in steps])
    assert taken[0] == taken[1]
