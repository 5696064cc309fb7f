"""Requests of the user: each changes what the engine does next, and a resumed run repeats the same choices."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from engine import steered_run
from engine.steered_run import Requests, Steered, branch, config, kernel, tree, work

from kernelpro.authors.author import Assignment, Draft, NoProposal
from kernelpro.engine.loop import Stopped
from kernelpro.engine.steering import Steering
from kernelpro.engine.store import RunStore
from kernelpro.records import Outcome
from kernelpro.records.events import (
    BranchClosed,
    BranchOpened,
    BudgetAdded,
    HintGiven,
    HintWithdrawn,
    KernelPasted,
    NodePinned,
    Note,
    ProfileRequested,
    ResumeRequested,
    RunEvent,
    RunFailed,
    RunStopped,
    SteeringApplied,
    StopRequested,
)
from kernelpro.search.choice import Choice
from kernelpro.search.tree import Tree


def steered(
    home: Path, requests: dict[int, list[RunEvent]], **settings: object
) -> tuple[RunStore, Outcome, Steered]:
    store = RunStore.create(home, config(**settings), "demo")  # type: ignore[arg-type]
    author = Steered(Requests(store, requests))
    return store, work(store, author), author


def applied(store: RunStore) -> list[tuple[int, str]]:
    """The step before which each request took effect, and why it was refused."""
    return [(event.step, event.refused) for _, event in store.events() if isinstance(event, SteeringApplied)]


@pytest.mark.parametrize("policy", ["mcts", "greedy", "beam", "best-of-n", "epsilon-greedy"])
def test_below_a_pinned_node_every_step_is_in_its_branch(tmp_path: Path, policy: str) -> None:
    store, _, _ = steered(tmp_path, {6: [NodePinned(2)], 12: [NodePinned(0)]}, policy=policy, candidates=16)
    steps = store.steps()
    inside = branch(steps, 2)
    assert {step.number for step in steps[6:12]} <= inside, "from the next choice on, until it is released"
    assert steps[6].parent == 2, "it goes on at this very node"
    assert len(steps) == 16


class Combining:
    """Combines the first two branches that it sees."""

    name = "combining"

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        parent, donor = tree.nodes[0].children[:2]
        return Choice(parent, "combine", donor)


def test_branches_of_a_pinned_node_are_not_combined(tmp_path: Path) -> None:
    """They have one seed, though the policy sees them as designs of their own."""
    found = Tree(1.0, 0.1, 0, 30)
    for parent, ms in ((0, 0.5), (0, 0.6), (1, 0.4), (1, 0.41)):
        found.settle(found.add(parent, "improve" if parent else "seed").id, ms)
    steering = Steering(RunStore.create(tmp_path, config(), "demo"))
    assert steering.choose(Combining(), found, random.Random(1)) == Choice(1, "combine", 2)
    steering.pinned = 1
    assert steering.choose(Combining(), found, random.Random(1)) == Choice(3, "improve")


def test_a_defect_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    def defect(step: int) -> None:
        raise ZeroDivisionError("a defect")

    store = RunStore.create(tmp_path, config(), "demo")
    with pytest.raises(ZeroDivisionError):
        work(store, Steered(defect))
    assert store.state() == "failed"
    assert [event.reason for _, event in store.events() if isinstance(event, RunFailed)] == [
        "internal error of KernelPro: ZeroDivisionError: a defect"
    ]


@pytest.mark.parametrize("policy", ["mcts", "greedy", "beam", "epsilon-greedy"])
def test_nothing_is_chosen_in_a_closed_branch(tmp_path: Path, policy: str) -> None:
    store, _, _ = steered(tmp_path / "free", {}, policy=policy, candidates=20)
    best = store.steps()[min(range(12), key=lambda k: store.steps()[k].ms or 9.0)]
    requests: dict[int, list[RunEvent]] = {12: [BranchClosed(best.number)]}
    store, _, _ = steered(tmp_path / "steered", requests, policy=policy, candidates=20)
    closed = branch(store.steps()[:12], best.number)
    assert not [step.number for step in store.steps()[12:] if step.parent in closed]


def test_a_branch_can_be_opened_again(tmp_path: Path) -> None:
    requests: dict[int, list[RunEvent]] = {3: [BranchClosed(1)], 4: [BranchOpened(1), NodePinned(1)]}
    store, _, _ = steered(tmp_path, requests, candidates=6)
    assert store.steps()[4].parent == 1 and applied(store) == [(4, ""), (5, ""), (5, "")]


def test_later_authors_see_a_hint_until_it_is_withdrawn(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, config(candidates=6), "demo")
    other, ids = RunStore(store.folder), []

    def on_write(step: int) -> None:
        if step == 2:
            ids.append(other.add_event(HintGiven("use wider tiles")))
        if step == 4:
            other.add_event(HintWithdrawn(ids[0]))

    author = Steered(on_write)
    work(store, author)
    assert [author.asked[n].hints for n in range(1, 7)] == [(), (), *[("use wider tiles",)] * 2, (), ()]


def test_a_pasted_kernel_is_the_next_step_and_costs_no_candidate(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, config(candidates=5), "demo")
    source = store.save_source(kernel(0.1))
    author = Steered(Requests(store, {3: [KernelPasted(source, 2, "my own"), KernelPasted(source, 99)]}))
    outcome = work(store, author)
    steps = store.steps()
    mine = steps[3]
    assert (mine.author, mine.parent, mine.action, mine.plan) == ("user", 2, "improve", "my own")
    assert mine.ms == 0.1 and outcome.best == 4
    assert len(steps) == 6, "five of the author, one of the user"
    assert [a.turn for a in author.asked.values()] == [0, 1, 2, 3, 4], "the author is not asked for it"
    assert applied(store) == [(4, ""), (5, "there is no step 99")]


def test_more_budget_lets_the_search_go_on(tmp_path: Path) -> None:
    store, outcome, _ = steered(tmp_path, {3: [BudgetAdded(candidates=2, dollars=1.0)]}, candidates=3)
    assert len(store.steps()) == 5 and outcome.reason == "the budget of 5 candidates is spent"
    assert store.config().limits.candidates == 5 and not store.config().limits.dollars, "no limit stays none"
    store.add_event(BudgetAdded(candidates=1))
    asyncio.run(continue_run_with(store, Steered()))
    assert len(store.steps()) == 6, "a finished run goes on when it is resumed"


async def continue_run_with(store: RunStore, author: Steered) -> None:
    from kernelpro.engine.loop import Engine
    from kernelpro.engine.steering import apply_budget

    store.lock()
    apply_budget(store)
    assert not store.is_finished
    await Engine(store, steered_run.Lab(), author).run()  # type: ignore[arg-type]


def test_finish_judges_the_finalists_and_resume_goes_on(tmp_path: Path) -> None:
    store, outcome, _ = steered(tmp_path, {3: [StopRequested(finish=True)]}, candidates=6)
    assert len(store.steps()) == 3 and outcome.reason == "the user ended the search" and outcome.best
    store.add_event(ResumeRequested())
    work(store, Steered())
    assert len(store.steps()) == 6


def test_a_request_to_stop_acts_at_once_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, config(candidates=5), "demo")

    class Slow(Steered):
        async def write(self, assignment: Assignment) -> Draft:
            draft = await super().write(assignment)
            if assignment.step == 3:
                await asyncio.sleep(60)
            return draft

    store.lock()
    with pytest.raises(Stopped):
        work(store, Slow(Requests(store, {3: [StopRequested()]})))
    assert [type(event) for _, event in store.events()][-1] is RunStopped
    store.close()
    store = RunStore(store.folder)
    assert store.state() == "stopped" and store.steps()[-1].stage == "chosen"
    store.lock()
    work(store, Steered())
    assert len(store.steps()) == 5, "the request was for the process before"


def test_a_profile_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    requests: dict[int, list[RunEvent]] = {4: [ProfileRequested(1), ProfileRequested(77)]}
    store, _, _ = steered(tmp_path, requests, policy="best-of-n", candidates=5)
    first = store.step(1)
    assert first and first.details.profile_error == "not here", "this lab has no profiler"
    assert applied(store) == [(5, ""), (5, "step 77 did not pass")]


def test_a_pin_is_released_when_no_idea_is_left_below_it(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, config(candidates=8), "demo")

    class Stuck(Steered):
        async def write(self, assignment: Assignment) -> Draft:
            draft = await super().write(assignment)
            if assignment.parent and assignment.parent.number in branch(store.steps(), 1):
                raise NoProposal("no idea")
            return draft

    outcome = work(store, Stuck(Requests(store, {4: [NodePinned(1)]})))
    notes = [event.text for _, event in store.events() if isinstance(event, Note)]
    assert "the author has no idea left below step 1: its pin is released" in notes
    assert "budget of 8 candidates" in outcome.reason, "the search went on elsewhere"


@pytest.mark.parametrize("killed_at", [7, 10])
def test_a_killed_run_repeats_what_was_asked_for(tmp_path: Path, killed_at: int) -> None:
    plain, killed = (RunStore.create(tmp_path / name, config(candidates=20), "run") for name in "ab")
    work(plain, Steered(Requests(plain, steered_run.many_requests(plain))))
    program = [sys.executable, steered_run.__file__, str(killed.folder.parent), killed.id, str(killed_at)]
    assert subprocess.run(program, check=False).returncode == -9
    assert len(killed.steps()) == killed_at
    again = Requests(killed, {k: v for k, v in steered_run.many_requests(killed).items() if k >= killed_at})
    author = Steered(again)
    work(killed, author)
    assert tree(killed) == tree(plain) and applied(killed) == applied(plain)
    assert any(step.author == "user" for step in killed.steps())
    assert all(author.asked[n].hints == ("use wider tiles",) for n in author.asked), "replayed"
