"""Whole runs of the agents over a real server on loopback: failed questions and replays.

The pool is fake. Questions and answers go through the real provider, transcripts and spending cap.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import verdict
from llm.asking import QUICK, SECRET
from llm.server import Act, Fail, LoopbackServer, Say, serving

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.authors.team.team import RoleModels, Team
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.llm.by_name import create_model
from kernelpro.llm.cap import SpendingCap
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import BadInput, Job, Limits, Outcome, RunConfig, Status, Task, Verdict
from kernelpro.report import render
from kernelpro.search.policy import parse_policy

if find_spec("pydantic_ai") is None:  # to import it takes a second, in every process that collects tests
    pytest.skip("pydantic-ai is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELPRO_API_KEY", SECRET)


class Lab(KnownLab):
    """A kernel takes as many milliseconds as it says; one that says 0 is wrong."""

    def verdict(self, job: Job, source: str) -> Verdict:
        ms = float(re.findall(r"MS = (\S+)", source)[0])
        return verdict(ms) if ms else Verdict("k", Status.WRONG, "off")


def kernel(ms: float) -> str:
    return f"MS = {ms}\n\n\nclass ModelNew:\n    pass\n"


def design(ms: float) -> Say:
    return Say(f"plan: design of {ms}\nhypothesis: none\n\n```python\n{kernel(ms)}```")


def plan(ms: float) -> Say:
    lines = "transformation: faster\nhypothesis: less time\nexpected: 1.4x\nkind: edit\nlanguage: cpp\n\nWrite it.\n\n"
    return Say(f"{lines}```anchor time\nMS = {ms}\n```")


def code(ms: float) -> Say:
    return Say(f"```python time\nMS = {ms}\n```")


NONSENSE = (Say("I cannot."),) * 3
"""As often as one question is asked again."""


SILENCE = (Fail(500),) * 4
"""As often as one request is made again."""


def begun(home: Path, policy: str = "best-of-n", candidates: int = 3, concurrency: int = 1) -> RunStore:
    """`policy` as the command line names it."""
    name, constants = parse_policy(policy)
    config = RunConfig(
        Task("", "t"), "cpu", "team", policy=name, constants=constants, concurrency=concurrency, finalists=0
    )
    return RunStore.create(home, replace(config, limits=Limits(candidates, stop_at_floor=0.0)), "demo")


def run(store: RunStore, spec: str) -> tuple[Outcome, SpendingCap]:
    purse = SpendingCap()
    asked = create_model(spec, QUICK, purse, Transcripts(store.folder / FILE))
    return asyncio.run(Engine(store, Lab(), Team(RoleModels(asked, asked, asked))).run()), purse  # type: ignore[arg-type]


def served(store: RunStore, *script: Act) -> tuple[Outcome, SpendingCap, LoopbackServer]:
    with serving(*script) as server:
        return *run(store, f"{server.url}/v1#m"), server


def states(store: RunStore) -> list[str]:
    return [step.state for step in store.steps()]


@pytest.mark.parametrize(
    ("failure", "state", "said"),
    [
        (NONSENSE, "no answer", "was malformed 3 times"),
        ((Fail(500),) * 4, "unreachable", "given up after 4 attempts"),
        ((Fail(400, message="the prompt violates our policy"),), "no answer", "violates our policy"),
    ],
)
def test_a_question_that_fails_for_good_is_a_failed_step_and_the_run_goes_on(
    tmp_path: Path, failure: tuple[Act, ...], state: str, said: str
) -> None:
    store = begun(tmp_path)
    outcome, purse, _ = served(store, design(0.5), *failure, design(0.4), design(0.3))
    assert states(store) == ["passed", state, "passed", "passed"]
    assert outcome.best == 4 and "3 candidates" in outcome.reason, (
        "no candidate was written, so none was used up"
    )
    failed = store.steps()[1]
    assert said in failed.note
    total = sum(step.cost.tokens_in for step in store.steps())
    assert total == purse.spent.tokens_in > 0, "what the failed question cost is the step's"


def test_a_plan_that_was_paid_for_counts_although_its_code_never_came(tmp_path: Path) -> None:
    store = begun(tmp_path, "greedy", candidates=2)
    _, purse, _ = served(store, design(0.5), plan(0.5), *NONSENSE, design(0.3))
    assert [(step.action, step.state) for step in store.steps()] == [
        ("seed", "passed"),
        ("improve", "no answer"),
        ("seed", "passed"),
    ], "another node is tried first"
    assert store.steps()[1].cost.calls == 4 and purse.spent.calls == 6


def test_three_failures_in_a_row_end_the_run_with_a_winner_and_a_word(tmp_path: Path) -> None:
    store = begun(tmp_path)
    outcome, _, server = served(store, design(0.5), *NONSENSE * 3, design(0.4))
    assert states(store) == ["passed", "no answer", "no answer", "no answer"] and len(server.script) == 1
    assert outcome.best == 1 and outcome.reason.startswith(
        "no usable answer for 3 steps in a row; the last error: http"
    )
    again, _, _ = served(store, design(0.4), design(0.3))
    assert again.best == 6 and "3 candidates" in again.reason, "who calls again asks again"
    assert not outcome.unanswered, "a model that cannot answer was asked enough"


def test_what_was_chosen_after_such_an_end_is_found_again(tmp_path: Path) -> None:
    """With several steps in flight a resumed run sees all results of before, also those that its first choice would have missed."""
    store = begun(tmp_path, "greedy", candidates=4, concurrency=3)
    first, _, _ = served(store, design(0.5), design(0.4), *SILENCE * 8)
    assert first.unanswered
    for answers in ((design(0.3), design(0.25), *SILENCE * 8), (design(0.2), design(0.1))):
        outcome, _, _ = served(store, *answers)
        numbers = {step.number: step.state for step in store.steps()}
        assert all(numbers.get(step.parent, "passed") == "passed" for step in store.steps()), numbers
    assert outcome.best and not outcome.unanswered


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "was rejected"), (402, "no credit"), (404, "does not know this model")],
)
def test_what_no_question_will_survive_ends_the_run_and_loses_nothing(
    tmp_path: Path, status: int, said: str
) -> None:
    store = begun(tmp_path, concurrency=2)
    slow = Fail(429, {"Retry-After": "1"})
    with pytest.raises(BadInput, match=said):
        served(store, design(0.5), *(Fail(status), slow, design(0.4)))
    stages = sorted(step.stage for step in store.steps())
    assert stages in (
        ["chosen", "judged", "settled"],
        ["chosen", "judged"],
        ["chosen", "settled", "settled"],
    ), "what was in flight is finished"
    outcome, _, _ = served(store, *(design(0.3),) * 3)
    assert outcome.best and "no answer" not in states(store), "with the key mended it goes on"


def test_a_replay_that_leaves_the_recorded_path_ends_like_a_run(tmp_path: Path) -> None:
    recorded = begun(tmp_path / "recorded", "greedy", candidates=2)
    served(recorded, design(0.5), plan(0.5), code(0.4))
    same = begun(tmp_path / "same", "greedy", candidates=2)
    outcome, purse = run(same, f"replay:{recorded.folder}")
    assert outcome.best == 2 and purse.spent.calls == 0
    further = begun(tmp_path / "further", "greedy", candidates=9)
    outcome, _ = run(further, f"replay:{recorded.folder}")
    assert outcome.best == 2 and "no recorded answer to step-3/plan" in outcome.reason


def test_a_recorded_answer_that_does_not_fit_is_a_failed_step(tmp_path: Path) -> None:
    recorded = begun(tmp_path / "recorded", "greedy", candidates=3)
    served(recorded, design(0.5), plan(0.5), code(0.6), plan(0.5), code(0.4))
    departed = begun(tmp_path / "departed", "greedy", candidates=3)
    lines = (recorded.folder / FILE).read_text().replace("MS = 0.6", "MS = 0.2")
    (tmp_path / "changed.jsonl").write_text(lines)
    outcome, _ = run(departed, f"replay:{tmp_path / 'changed.jsonl'}")
    assert outcome.best == 2 and states(departed) == ["passed", "passed", "no answer", "out of ideas"]
    assert "does not fit the present format" in departed.steps()[2].note


@pytest.mark.parametrize("policy", ["greedy", "epsilon-greedy:max_seeds=1", "mcts:seeds=1"])
def test_a_duplicate_is_not_sent_to_the_debugger(tmp_path: Path, policy: str) -> None:
    store = begun(tmp_path, policy, candidates=4)
    served(store, design(0.5), plan(0.5), code(0.5), *(plan(0.5), code(0.5)), plan(0.5), code(0.4))
    assert [(step.action, step.parent, step.state) for step in store.steps()] == [
        ("seed", 0, "passed"),
        ("improve", 1, "duplicate"),
        ("improve", 1, "duplicate"),
        ("improve", 1, "passed"),
    ]


def test_two_good_branches_are_combined_and_the_run_goes_on_after_a_restart(tmp_path: Path) -> None:
    script = (design(0.5), design(0.6), plan(0.5), code(0.45), plan(0.45), code(0.4))
    store = begun(tmp_path, "mcts:seeds=2,combine_interval=2,exploration=0", candidates=4)
    _, _, server = served(store, *script)
    first, second, improved, combined = store.steps()
    assert (combined.action, combined.parent, combined.donor, combined.state) == (
        "combine",
        improved.number,
        second.number,
        "passed",
    )
    shown = server.requests[4].body["messages"][-1]["content"]
    assert "MS = 0.45" in shown and "MS = 0.6" in shown and first.action == "seed"
    engine = Engine(
        RunStore.open(tmp_path, store.id),
        Lab(),
        Team(RoleModels(*(create_model(f"replay:{store.folder}"),) * 3)),
    )  # type: ignore[arg-type]
    asyncio.run(engine.run())
    assert (
        engine.tree.nodes[4].donor == 2 and [step.state for step in engine.steps.values()] == ["passed"] * 4
    )
    assert "combine of 3 and 2" in render(store, "md")
    assert 'a combination of <a href="#step-3">step 3</a> and <a href="#step-2">step 2</a>' in render(
        store, "html"
    )


def test_an_author_that_cannot_combine_is_asked_to_improve(tmp_path: Path) -> None:
    class Alone(Author):
        name = "alone"

        async def write(self, assignment: Assignment) -> Draft:
            return Draft(kernel((0.5, 0.6, 0.45, 0.4)[assignment.turn]))

    store = begun(tmp_path, "mcts:seeds=2,combine_interval=2,exploration=0", candidates=4)
    asyncio.run(Engine(store, Lab(), Alone()).run())  # type: ignore[arg-type]
    assert [(step.action, step.parent) for step in store.steps()] == [
        ("seed", 0),
        ("seed", 0),
        ("improve", 1),
        ("improve", 3),
    ]


def test_only_a_run_on_a_gpu_asks_where_an_illegal_access_was(tmp_path: Path) -> None:
    class Asked(Lab):
        def __init__(self) -> None:
            self.jobs: list[Job] = []

        def verdict(self, job: Job, source: str) -> Verdict:
            self.jobs.append(job)
            return Verdict(
                "k", Status.CRASHED, "illegal memory access\ncompute-sanitizer: at beyond() in kernel.cu:3"
            )

    for target in ("cpu", "cuda"):
        store, lab = begun(tmp_path / target, "greedy", candidates=2), Asked()
        store.save_config(replace(store.config(), target=target))  # type: ignore[arg-type]
        with serving(
            design(0.5), Say("diagnosis: the index\n```find a\nMS = 0.5\n```\n```python a\nMS = 0.4\n```")
        ) as server:
            asked = create_model(f"{server.url}/v1#m", QUICK)
            asyncio.run(Engine(store, lab, Team(RoleModels(asked, asked, asked))).run())  # type: ignore[arg-type]
        assert {job.sanitize for job in lab.jobs} == {target == "cuda"}
        assert (
            "compute-sanitizer: at beyond() in kernel.cu:3"
            in server.requests[1].body["messages"][-1]["content"]
        )
