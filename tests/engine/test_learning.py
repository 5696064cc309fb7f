"""What a run learns from its steps and shows to its author, with a fake pool."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.engine import learning
from kernelpro.engine.loop import Engine
from kernelpro.engine.prompt_context import PromptContext
from kernelpro.engine.store import RunStore
from kernelpro.memory.knowledge import Knowledge, Observation
from kernelpro.memory.run_memory import Attempt, RunMemory
from kernelpro.pools.pool import lost_result
from kernelpro.records import (
    BaselineSeed,
    Bound,
    ComparableTimes,
    Diagnosis,
    Job,
    Limits,
    Outcome,
    Result,
    RunConfig,
    Status,
    Step,
    StepDetails,
    Task,
    TaskFacts,
    Verdict,
)
from kernelpro.search.tree import Tree

SEEDS = (BaselineSeed("compile", "torch.compile", "seed = 1"),)
SCALE = ComparableTimes({"compile": 1.0})
TIMES = {"seed = 1": 1.0, "design = 2": 0.5, "better = 3": 0.4, "worse = 4": 0.6, "last = 5": 0.3}


class Lab(KnownLab):
    seeds = SEEDS

    def verdict(self, job: Job, source: str) -> Verdict:
        return verdict(TIMES[source])


class Script(Author):
    """Keeps what it was shown."""

    name = "script"

    def __init__(self) -> None:
        self.shown: dict[int, Assignment] = {}

    async def write(self, assignment: Assignment) -> Draft:
        self.shown[assignment.step] = assignment
        return Draft(
            list(TIMES)[assignment.step - 1],
            f"plan {'abcdef'[assignment.step]}",
            author="script",
            expected_speedup=2.0,
        )


def run(home: Path) -> dict[int, Assignment]:
    config = RunConfig(
        Task("", "t"), "cuda", "script", policy="greedy", limits=Limits(len(TIMES)), concurrency=1
    )
    author = Script()
    asyncio.run(Engine(RunStore.create(home, config, "demo"), Lab(), author).run())  # type: ignore[arg-type]
    return author.shown


def attempt(step: Step, parent: Step | None) -> Attempt:
    return next(event for event in learning.events(step, parent, SCALE) if isinstance(event, Attempt))


def test_a_step_is_held_against_its_parent_and_a_fresh_one_against_the_baselines() -> None:
    fresh = Step(
        3, 0, "seed", source="a", plan="p", verdict=verdict(0.25), details=StepDetails(expected_speedup=9.0)
    )
    told = attempt(fresh, None)
    assert (told.gain, told.is_fresh, told.ms, told.confirmed) == (4.0, True, 0.25, None)
    child = attempt(
        Step(
            4,
            3,
            "improve",
            source="b",
            plan="q",
            verdict=verdict(0.2),
            details=StepDetails(expected_speedup=1.3),
        ),
        fresh,
    )
    assert (child.gain, child.is_fresh, child.expected_speedup, child.confirmed) == (1.25, False, 1.3, True)
    broken = replace(fresh, verdict=Verdict("k", Status.WRONG, "off by one"))
    mended = attempt(Step(5, 3, "debug", source="c", plan="fix", verdict=verdict(0.5)), broken)
    assert (mended.gain, mended.is_fresh) == (2.0, True)


def test_a_hypothesis_goes_into_memory_with_its_mark(tmp_path: Path) -> None:
    config = RunConfig(Task("", "t"), "cuda", "script")
    diagnosis = Diagnosis(Bound.MEMORY, "high", "counters agree", {})
    parent = Step(1, 0, "seed", source="a", plan="design", verdict=verdict(0.5), diagnosis=diagnosis)
    steps = [parent]
    for number, ms in ((2, 0.4), (3, 0.49)):
        told = {
            "plan": f"plan {'xyz'[number - 2]}",
            "hypothesis": "loads are narrow",
            "details": StepDetails(expected_speedup=1.3),
        }
        steps.append(Step(number, 1, "improve", source=str(number), verdict=verdict(ms), **told))  # type: ignore[arg-type]
    memory = RunMemory()
    for step in steps:
        for event in learning.events(step, parent if step.parent else None, SCALE):
            memory.add(event)
    digest = memory.digest(1, 800)
    assert (
        "expected 1.30x, confirmed (loads are narrow)" in digest
        and "expected 1.30x, refuted (loads are narrow)" in digest
    )
    knowledge = Knowledge(tmp_path / "knowledge.db")
    knowledge.add(learning.observations(steps, config, SCALE, "run-1"))
    told = learning.advice(knowledge, config, parent)
    assert (
        "plan x: 1.06x expected (1 of 1 times faster); the last attempt expected 1.30x, confirmed (loads are narrow)"
        in told
    )
    assert "expected 1.30x, refuted (loads are narrow)" in told


def test_what_the_compiler_wrote_is_neither_learnt_from_nor_a_leader(tmp_path: Path) -> None:
    shown = run(tmp_path)
    assert all("torch.compile" not in a.memory for a in shown.values())
    assert all(leader.number > len(SEEDS) for a in shown.values() for leader in a.leaders)
    last = shown[5]
    assert (
        last.parent
        and [leader.number for leader in last.leaders]
        and last.parent.number not in {n.number for n in last.leaders}
    )
    times = [leader.verdict.times["candidate"].value for leader in last.leaders if leader.verdict]
    assert times == sorted(times)
    assert all(leader.plan not in last.memory for leader in last.leaders), "told once"
    assert last.parent.plan not in last.memory


def test_steps_under_way_from_the_same_kernel_are_shown_to_later_ones(tmp_path: Path) -> None:
    config = RunConfig(Task("", "t"), "cuda", "script")
    tree = Tree(1.0, 0.01)
    tree.add(0, "seed")
    tree.settle(1, 0.5)
    steps = {1: Step(1, 0, "seed", "settled", plan="design", verdict=verdict(0.5))}
    for number, stage, plan in (
        (2, "settled", "done"),
        (3, "judged", "wide loads"),
        (4, "chosen", ""),
        (5, "chosen", ""),
    ):
        tree.add(1, "improve")
        steps[number] = Step(number, 1, "improve", stage, plan=plan)  # type: ignore[arg-type]
    facts = TaskFacts({"compile": 1.0}, 0.01, "fp32")
    context = PromptContext(config, facts, tree, steps, RunStore.create(tmp_path, config, "demo"))
    beside = {
        number: [(known.number, known.plan) for known in context.assignment(steps[number]).concurrent]
        for number in (3, 4, 5)
    }
    assert beside == {3: [], 4: [(3, "wide loads")], 5: [(3, "wide loads"), (4, "")]}


def test_methods_without_an_effect_are_not_offered_as_advice(tmp_path: Path) -> None:
    knowledge = Knowledge(tmp_path / "knowledge.db")
    config = RunConfig(Task("class Model: pass"), "cpu", "playbook")
    for method, gain in (("helps", 0.3), ("hurts", -0.3), ("does nothing", 0.001)):
        knowledge.add([Observation(method, "", "cpu", "", learning.family(config.task.source), gain)])
    advice = learning.advice(knowledge, config, None)
    assert "helps" in advice and "hurts" in advice and "does nothing" not in advice


class BuggyLab(Lab):
    """A lab that fails at the candidates of some steps."""

    def __init__(self, steps: tuple[int, ...]):
        self.steps = steps

    def _result(self, job: Job) -> Result:
        if job.kind == "judge" and any(job.id == f"step {number}" for number in self.steps):
            return lost_result(job, "internal error of KernelPro: KeyError: 'x'", internal_error=True)
        return super()._result(job)


def search(home: Path, *buggy_steps: int) -> tuple[RunStore, Outcome, dict[int, Assignment]]:
    config = RunConfig(Task("", "t"), "cuda", "script", policy="greedy", limits=Limits(5), concurrency=1)
    store, author = RunStore.create(home, config, "demo"), Script()
    outcome = asyncio.run(Engine(store, BuggyLab(buggy_steps), author).run())  # type: ignore[arg-type]
    return store, outcome, author.shown


def test_nothing_is_learnt_from_a_candidate_that_a_bug_of_ours_met(tmp_path: Path) -> None:
    store, outcome, shown = search(tmp_path, 2)
    step = store.step(2)
    assert step and step.state == "internal error" and step.verdict is None and "KeyError" in step.note
    for assignment in (shown[3], shown[4], shown[5]):
        assert "plan c" not in assignment.memory, "the plan of step 2"
        relatives = (*assignment.siblings, *assignment.children, *assignment.cousins, *assignment.leaders)
        assert 2 not in {relative.number for relative in relatives}
        assert assignment.parent is None or assignment.parent.number != 2
    assert outcome.best == 5


def test_a_bug_that_meets_every_candidate_ends_the_search(tmp_path: Path) -> None:
    _, outcome, shown = search(tmp_path, 2, 3, 4, 5)
    assert list(shown) == [2, 3, 4], "no model is paid for a fourth"
    assert outcome.reason.startswith("3 candidates in a row: internal error of KernelPro")
