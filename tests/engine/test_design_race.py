"""The playbook's first designs race; only the fastest are judged, and the others say why they are not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from authors.playbook_harness import make_task, operator_graph_of
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Draft
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.design_race import first_designs
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.records import (
    BaselineSeed,
    Graph,
    Job,
    Limits,
    NoVerdict,
    Outcome,
    RaceData,
    RacedDesign,
    Result,
    RunConfig,
    Status,
    StudyData,
    Verdict,
)

pytestmark = pytest.mark.together
NORM = make_task("F.layer_norm(a + b, (64,))", "torch.randn(8, 64), torch.randn(8, 64)")
COMPILED = BaselineSeed("compile", "torch.compile", "compiled = 1")


@cache
def graph() -> Graph:
    return operator_graph_of(NORM)


class RacingLab(KnownLab):
    """The n-th design has the n-th ratio of `ratios`, and none if that is 0; verdicts are `speedup`."""

    seeds = (COMPILED,)

    def __init__(self, *ratios: float, speedup: float = 2.0):
        self._ratios, self._speedup = ratios, speedup
        self.kinds: list[str] = []

    def verdict(self, job: Job, source: str) -> Verdict:
        if source == COMPILED.source:
            return replace(verdict(1.0), faster="unclear")
        unclear = abs(self._speedup - 1) < 0.03
        clearly = "yes" if self._speedup > 1 else "no"
        return replace(verdict(1 / self._speedup), faster="unclear" if unclear else clearly)

    def _result(self, job: Job) -> Result:
        self.kinds.append(job.kind)
        if job.kind == "race":
            assert len(job.candidates) == len(self._ratios)
            wrong = RacedDesign(Status.WRONG, "off by one")
            return Result(
                job.id,
                data=RaceData(tuple(RacedDesign(Status.PASSED, "", r) if r else wrong for r in self._ratios)),
            )
        result = super()._result(job)
        if isinstance(result.data, StudyData):
            return replace(result, data=replace(result.data, graph=graph()))
        return result


def run(home: Path, lab: KnownLab, candidates: int = 1, places: int = 1) -> tuple[Outcome, RunStore]:
    limits = Limits(candidates)
    config = RunConfig(
        NORM,
        "cpu",
        "playbook",
        limits=limits,
        tune_points=0,
        finalists=0,
        knowledge=False,
        race=places,
    )
    store = RunStore.create(home, config, "demo")
    return asyncio.run(Engine(store, lab, Playbook()).run(explain=False)), store  # type: ignore[arg-type]


def test_only_the_fastest_is_judged_and_every_other_design_says_why_not(tmp_path: Path) -> None:
    lab = RacingLab(1.8, 1.04, 0, 1.0)
    outcome, store = run(tmp_path, lab)
    steps = store.steps()
    assert [step.state for step in steps] == ["lost race", "lost race", "lost race", "passed"]
    assert steps[0].note == "it took 1.80x as long as the fastest of 4 designs in a race"
    assert steps[2].note == "it failed in a race of 4 designs: wrong: off by one"
    assert outcome.best == 4 and lab.kinds.count("judge") == 1
    assert outcome.reason == "the budget of 1 candidates is spent", "those that lost use up none"


def test_so_many_are_judged_as_have_places_if_they_are_near_the_fastest(tmp_path: Path) -> None:
    _, store = run(tmp_path, RacingLab(1.8, 1.04, 1.05, 1.0), places=2)
    assert [step.number for step in store.steps() if step.verdict] == [2, 4]
    _, store = run(tmp_path, RacingLab(1.8, 1.4, 1.5, 1.0), places=2)
    assert [step.number for step in store.steps() if step.verdict] == [4]


@pytest.mark.parametrize("ratios", [(1.02, 1.4, 1.5, 1.0), (1.0, 0, 0, 0)])
def test_the_compilers_code_is_the_result_if_nothing_is_faster(
    ratios: tuple[float, ...], tmp_path: Path
) -> None:
    outcome, store = run(tmp_path, RacingLab(*ratios, speedup=0.9))
    assert outcome.best == 1 and "torch.compile's own code" in outcome.notes[0]
    assert all(step.no_verdict is NoVerdict.LOST_RACE for step in store.steps() if not step.verdict)


@pytest.mark.parametrize(("speedup", "best", "judged"), [(0.995, 4, 1), (0.98, 1, 2)])
def test_code_that_lost_the_race_is_judged_only_if_the_winner_seems_slower_than_the_baseline(
    speedup: float, best: int, judged: int, tmp_path: Path
) -> None:
    lab = RacingLab(1.02, 1.4, 1.5, 1.0, speedup=speedup)
    outcome, _ = run(tmp_path, lab)
    assert outcome.best == best and lab.kinds.count("judge") == judged


def test_compiled_code_that_lost_the_race_to_its_graph_is_judged_if_the_graph_is_slower(
    tmp_path: Path,
) -> None:
    class WithGraph(RacingLab):
        seeds = (COMPILED, BaselineSeed("compile", "torch.compile in a CUDA graph", "graphed = 1"))

    for speedup, best in ((0.95, 1), (1.2, 2)):
        outcome, _ = run(tmp_path, WithGraph(1.01, 1.0, 1.4, 1.5, 1.3, speedup=speedup))
        assert outcome.best == best


def test_a_resumed_run_does_not_race_again(tmp_path: Path) -> None:
    lab = RacingLab(1.8, 1.04, 1.05, 1.0)
    _, store = run(tmp_path, lab, candidates=1)
    store.close()
    store = RunStore.open(tmp_path, "demo-1")
    store.save_config(replace(store.config(), limits=Limits(3)))
    asyncio.run(Engine(store, lab, Playbook()).run(explain=False))  # type: ignore[arg-type]
    assert lab.kinds.count("race") == 1
    assert {step.action for step in store.steps()[4:]} == {"improve"}, (
        "the rest of the budget improves the winner"
    )


def test_more_designs_race_if_some_are_cuda_graphs() -> None:
    plain, graph = Draft("x = 1"), Draft("g = torch.cuda.CUDAGraph()")
    assert len(first_designs([plain] * 20)) == 8
    assert len(first_designs([plain] * 10 + [graph] * 10)) == 12
    assert len(first_designs([graph] * 20)) == 8
