"""The properties of each policy."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from simulation.landscapes import KINDS, generate

from kernelpro.records import BadInput
from kernelpro.search import POLICIES, Choice, Tree, make_policy
from kernelpro.search.choice import combination
from kernelpro.search.epsilon_greedy import EpsilonGreedy
from kernelpro.search.mcts import Mcts
from kernelpro.search.policy import parse_policy

Result = Callable[[Tree, Choice, random.Random], float | None]


def put(tree: Tree, parent: int, *results: float | None) -> list[int]:
    """Settled children of a node."""
    action = "seed" if parent == 0 else "improve" if tree.nodes[parent].state == "ok" else "debug"
    ids = []
    for ms in results:
        node = tree.add(parent, action)  # type: ignore[arg-type]
        tree.settle(node.id, ms)
        ids.append(node.id)
    return ids


def grow_with(
    name: str, steps: int, result: Result, concurrency: int = 1, seed: int = 0, **constants: float
) -> Tree:
    """A tree grown by a policy, each choice checked: no pending parent, the action fits."""
    policy, rng, tree = make_policy(name, **constants), random.Random(seed), Tree(1.0, 0.1)
    pending: list[tuple[int, Choice]] = []
    for _ in range(steps):
        choice = policy.choose(tree, rng)
        parent = tree.nodes[choice.parent]
        assert parent.state not in ("pending", "void")
        growth = "improve" if choice.action == "combine" else choice.action
        assert growth == ("seed" if parent.id == 0 else "improve" if parent.state == "ok" else "debug")
        pending.append((tree.add(choice.parent, choice.action, choice.donor).id, choice))
        if len(pending) == concurrency:
            id, settled = pending.pop(rng.randrange(concurrency))
            ms = result(tree, settled, rng)
            tree.settle(id, None if ms == math.inf else ms, void=ms == math.inf)
    return tree


def mixed(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
    return None if rng.random() < 0.35 else rng.uniform(0.15, 2.0)


def often_void(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
    """Infinity stands for a duplicate."""
    return math.inf if rng.random() < 0.5 else mixed(tree, choice, rng)


def fails(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
    return None


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_choices_fit_the_tree_and_never_have_a_pending_parent(name: str, concurrency: int) -> None:
    assert len(grow_with(name, 200, mixed, concurrency)) == 201


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_leaves_nothing_to_mend_is_not_debugged(name: str, concurrency: int) -> None:
    tree = grow_with(name, 200, often_void, concurrency)
    assert len(tree) == 201 and not any(node.children for node in tree.nodes if node.state == "void")


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_tree_and_random_numbers_give_the_same_choice(name: str) -> None:
    a, b = (grow_with(name, 120, mixed, 3, seed=5) for _ in range(2))
    assert a.nodes == b.nodes
    again = [make_policy(name).choose(a, random.Random(9)) for _ in range(3)]
    assert len(set(again)) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_gives_a_task_up(name: str) -> None:
    tree = grow_with(name, 200, fails, 2)
    assert len(tree) == 201
    if name != "epsilon-greedy":
        assert sum(node.action == "seed" for node in tree.nodes[100:]) > 10, "fresh seeds keep coming"


@pytest.mark.parametrize("name", POLICIES)
def test_a_single_success_after_43_failures_is_built_upon(name: str) -> None:
    def late(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
        return None if len(tree) < 44 or rng.random() < 0.5 else 0.8

    tree = grow_with(name, 90, late)
    assert name == "best-of-n" or any(node.action == "improve" for node in tree.nodes)


def test_best_of_n_only_seeds() -> None:
    assert {node.action for node in grow_with("best-of-n", 50, mixed).nodes} == {"root", "seed"}


def test_greedy_takes_the_best_and_debugs_its_last_failure_once() -> None:
    tree, rng, greedy = Tree(1.0, 0.1), random.Random(0), make_policy("greedy", seeds=3)
    put(tree, 0, 0.9, 0.5)
    assert greedy.choose(tree, rng) == Choice(0, "seed")
    put(tree, 0, 0.7)
    assert greedy.choose(tree, rng) == Choice(2, "improve")
    (failed,) = put(tree, 2, None)
    assert greedy.choose(tree, rng) == Choice(failed, "debug")
    put(tree, failed, None)
    assert greedy.choose(tree, rng) == Choice(2, "improve")


def test_beam_gives_each_member_its_share_of_a_round() -> None:
    tree, rng, beam = Tree(1.0, 0.1), random.Random(0), make_policy("beam", seeds=4, width=2, branch=2)
    put(tree, 0, 0.9, 0.5, 0.6, None)
    chosen = []
    for _ in range(4):
        chosen.append(beam.choose(tree, rng))
        put(tree, chosen[-1].parent, 0.55)
    assert sorted(choice.parent for choice in chosen) == [2, 2, 3, 3]
    assert {beam.choose(tree, rng).parent for _ in range(3)} <= {2, 5, 6, 7, 8}, (
        "the next round has the new best"
    )


class TestEpsilonGreedy:
    def test_the_root_is_throttled(self) -> None:
        def slow(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
            return rng.uniform(1.1, 2.0)

        assert len(grow_with("epsilon-greedy", 80, slow).nodes[0].children) == 5

    def test_a_node_with_more_than_three_failed_children_is_closed(self) -> None:
        tree, policy = Tree(1.0, 0.1), EpsilonGreedy(epsilon=0.0)
        put(tree, 0, 0.5, 0.6)
        put(tree, 1, None, None, None)
        assert policy.choose(tree, random.Random(0)) == Choice(1, "improve")
        put(tree, 1, None)
        assert policy.is_closed(tree.nodes[1])
        assert policy.choose(tree, random.Random(0)) == Choice(2, "improve")
        explored = {EpsilonGreedy(epsilon=1.0).choose(tree, random.Random(seed)).parent for seed in range(50)}
        assert explored == {2}, "leaves below a closed node are not open"

    def test_a_fixed_child_keeps_its_node_open(self) -> None:
        tree, policy = Tree(1.0, 0.1), EpsilonGreedy()
        put(tree, 0, 0.5)
        failed = put(tree, 1, None, None, None, None)
        put(tree, failed[0], 0.4)
        assert not policy.is_closed(tree.nodes[1])

    def test_it_explores_leaves_uniformly_with_probability_epsilon(self) -> None:
        tree, rng = Tree(1.0, 0.1), random.Random(0)
        put(tree, 0, 0.5, 0.6, None, 0.7)
        drawn = [EpsilonGreedy(epsilon=0.4).choose(tree, rng) for _ in range(4000)]
        share = {parent: sum(choice.parent == parent for choice in drawn) / 4000 for parent in (1, 2, 3, 4)}
        assert share == pytest.approx({1: 0.7, 2: 0.1, 3: 0.1, 4: 0.1}, abs=0.03)
        assert Choice(3, "debug") in drawn


class TestCombination:
    """Two branches of one tree: 1 -> 3 and 2; a third seed is far behind."""

    def grown(self, given: int = 0, slow: float = 0.6) -> Tree:
        tree = Tree(2.0, 0.1, given)
        put(tree, 0, 0.5, slow)
        put(tree, 1, 0.45)
        put(tree, 0, 1.9)
        return tree

    def test_it_takes_the_fastest_of_another_seed(self) -> None:
        tree = self.grown()
        assert combination(tree, tree.nodes[3], 1, 1.5) == Choice(3, "combine", 2)
        assert combination(tree, tree.nodes[2], 1, 1.5) == Choice(2, "combine", 3)

    def test_it_wants_two_written_branches_that_are_near_each_other(self) -> None:
        assert combination(self.grown(slow=0.7), self.grown(slow=0.7).nodes[3], 1, 1.5) is None, (
            "the other is too slow"
        )
        tree = self.grown()
        assert combination(tree, tree.nodes[4], 1, 1.5) is None, "it is too slow itself"
        for given in (1, 2):
            compiled = self.grown(given)
            assert combination(compiled, compiled.nodes[3], 1, 1.5) is None, (
                "what compilers wrote is not combined"
            )
        assert (
            combination(tree, tree.nodes[0], 1, 1.5) is None
            and combination(tree, tree.nodes[3], 0, 1.5) is None
        )

    def test_it_comes_every_so_many_improvements_and_borrows_from_a_kernel_once(self) -> None:
        tree, due = self.grown(), []
        for _ in range(6):
            due.append(combination(tree, tree.nodes[3], 3, 1.5) is not None)
            put(tree, 3, None)
        assert due == [False, True, True, True, True, True], "once it is due it stays so"
        tree.settle(tree.add(3, "combine", 2).id, None)
        assert combination(tree, tree.nodes[3], 1, 1.5) is None, "it borrowed from that one before"
        (faster,) = put(tree, 2, 0.55)
        assert combination(tree, tree.nodes[3], 1, 1.5) == Choice(3, "combine", faster)
        assert combination(tree, tree.nodes[1], 3, 1.5) is None, "not due again yet"

    def test_mcts_combines_now_and_then_and_the_others_never(self) -> None:
        def near(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
            return rng.uniform(0.5, 0.6)

        for name in POLICIES:
            tree = grow_with(name, 150, near, 2)
            combined = [node for node in tree.nodes if node.action == "combine"]
            assert bool(combined) == (name == "mcts"), name
            for node in combined:
                assert node.donor and tree.nodes[node.donor].seed != node.seed
        assert not any(
            node.action == "combine" for node in grow_with("mcts", 150, near, 2, combine_interval=0).nodes
        )


class TestMcts:
    def test_the_number_of_first_seeds_follows_the_budget(self) -> None:
        policy = make_policy("mcts")
        assert [policy.first_seeds(budget) for budget in (1, 5, 8, 20, 75, 300)] == [1, 3, 4, 6, 11, 22]  # type: ignore[attr-defined]
        assert make_policy("mcts", seeds=6).first_seeds(5) == 6  # type: ignore[attr-defined]
        tree, rng = Tree(1.0, 0.1, compiler_seeds=2, budget=5), random.Random(0)
        actions = []
        for step in range(7):
            choice = policy.choose(tree, rng)
            tree.settle(tree.add(choice.parent, choice.action, choice.donor).id, 0.5 + 0.01 * step)
            actions.append(choice.action)
        assert actions == ["seed"] * 5 + ["improve"] * 2, "two of the compiler, three designs"

    def test_it_begins_with_seeds(self) -> None:
        tree = grow_with("mcts", 5, mixed, 5, seeds=5)
        assert [node.action for node in tree.nodes] == ["root"] + ["seed"] * 5

    def test_children_follow_the_widening_law(self) -> None:
        never = {"seed_interval": 1000, "max_failures": 1000, "patience": 1000}
        constants = {"width": 1.0, "alpha": 0.5, "seeds": 2, **never}
        policy = make_policy("mcts", **constants)
        assert isinstance(policy, Mcts)

        def works(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
            return rng.uniform(0.2, 2.0)

        tree = grow_with("mcts", 400, works, **constants)
        for node in tree.nodes:
            law = max(1, math.floor(math.sqrt(node.visits + node.pending)))
            assert policy.max_children(node) == law
            assert len(node.children) <= max(law, 2 if node.id == 0 else 1)
        assert any(len(node.children) > 3 for node in tree.nodes[1:])

    def test_fresh_seeds_come_at_intervals(self) -> None:
        def better(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
            return 0.9 ** len(tree) + 0.1

        def longest(tree: Tree) -> int:
            seeds = [*tree.nodes[0].children, len(tree)]
            return max(b - a for a, b in itertools.pairwise(seeds))

        often = {"seeds": 2, "seed_interval": 9}
        assert longest(grow_with("mcts", 60, better, **often)) == 10
        assert longest(grow_with("mcts", 60, better, **{**often, "seed_interval": 1000, "width": 0.1})) > 40

    def test_a_branch_of_failures_closes_and_the_others_go_on(self) -> None:
        policy, tree, rng = (
            Mcts(seeds=2, max_fixes=2, max_failures=4, seed_interval=1000),
            Tree(1.0, 0.1),
            random.Random(0),
        )
        put(tree, 0, 0.3, 0.9)
        root, good = tree.nodes[0], tree.nodes[1]
        for _ in range(4):
            assert not policy.is_closed(good, root)
            put(tree, 1, None)
        assert policy.is_closed(good, root)
        assert policy.choose(tree, rng).parent in (0, 2)
        late = put(tree, tree.nodes[1].children[0], 0.25)
        assert late
        assert not policy.is_closed(good, root), "a fix opens it again"

    def test_a_failure_gets_a_limited_number_of_fixes(self) -> None:
        tree = grow_with("mcts", 120, fails, max_fixes=2)
        for seed in tree.nodes[0].children:
            assert tree.nodes[seed].visits <= 3

    def test_a_branch_slower_than_its_parent_closes_after_a_while(self) -> None:
        policy, tree = Mcts(patience=2), Tree(1.0, 0.1)
        put(tree, 0, 0.5)
        put(tree, 1, 0.8)
        assert not policy.is_closed(tree.nodes[2], tree.nodes[1])
        put(tree, 2, 0.7)
        assert policy.is_closed(tree.nodes[2], tree.nodes[1])
        put(tree, 2, 0.4)
        assert not policy.is_closed(tree.nodes[2], tree.nodes[1])

    def test_virtual_loss_spreads_choices_made_at_once(self) -> None:
        policy, tree, rng = make_policy("mcts", seeds=6, seed_interval=1000), Tree(1.0, 0.1), random.Random(0)
        put(tree, 0, 0.5, 0.51, 0.52, 0.53, 0.54, 0.55)
        parents = []
        for _ in range(6):
            choice = policy.choose(tree, rng)
            tree.add(choice.parent, choice.action)
            parents.append(choice.parent)
        assert len(set(parents)) >= 4

    def test_a_choice_looks_at_a_small_part_of_a_large_tree(self) -> None:
        def near_the_parent(tree: Tree, choice: Choice, rng: random.Random) -> float | None:
            above = next(node.ms for node in tree.path(choice.parent) if node.ms is not None)
            return None if rng.random() < 0.33 else 0.1 + (above - 0.1) * rng.uniform(0.8, 1.2)

        tree = grow_with("mcts", 3000, near_the_parent)
        choice = make_policy("mcts", seed_interval=100000).choose(tree, random.Random(0))
        assert sum(len(node.children) for node in tree.path(choice.parent)) < 900


@pytest.mark.parametrize(
    ("name", "constants", "says"),
    [
        (
            "mtcs",
            {},
            "unknown search policy 'mtcs' (did you mean mcts?); choose one of mcts, epsilon-greedy, beam, greedy, best-of-n",
        ),
        ("greedy", {"epsilon": 0.1}, "policy greedy has no constant 'epsilon'; it has seeds"),
        ("best-of-n", {"seeds": 1}, "policy best-of-n has no constant 'seeds'; it has none"),
        (
            "epsilon-greedy",
            {"epsilon": 1.5},
            "epsilon of policy epsilon-greedy must be a number from 0.0 to 1.0, not 1.5",
        ),
        ("beam", {"width": 2.5}, "width of policy beam must be a whole number from 1 to 1000, not 2.5"),
        ("mcts", {"alpha": True}, "alpha of policy mcts must be a number from 0.0 to 1.0, not True"),
        ("mcts", {"alpha": float("nan")}, "alpha of policy mcts must be a number from 0.0 to 1.0, not nan"),
    ],
)
def test_bad_names_and_constants_are_one_clear_line(
    name: str, constants: dict[str, float], says: str
) -> None:
    with pytest.raises(BadInput) as raised:
        make_policy(name, **constants)
    assert str(raised.value) == says


def test_make_knows_every_policy_and_passes_constants_on() -> None:
    assert [make_policy(name).name for name in POLICIES] == [
        "mcts",
        "epsilon-greedy",
        "beam",
        "greedy",
        "best-of-n",
    ]
    assert make_policy("mcts", exploration=1, seeds=3) == Mcts(exploration=1, seeds=3)
    assert set(KINDS) == {"smooth", "rugged", "deceptive", "cliff", "combination"}
    assert generate("smooth", 1).baseline_ms > 0


def test_constants_are_read_from_the_name() -> None:
    assert parse_policy("greedy") == ("greedy", {})
    assert parse_policy("greedy:seeds=3") == ("greedy", {"seeds": 3})
    for wrong in ("nobody", "greedy:seeds=many", "greedy:seeds=0", "greedy:sneeds=3"):
        with pytest.raises(BadInput):
            parse_policy(wrong)


def test_the_documented_policy_works() -> None:
    docs = Path(__file__).parents[2] / "docs"
    (page,) = (text for path in docs.rglob("*.md") if "class RoundRobin" in (text := path.read_text()))
    documented = ModuleType("documented")
    sys.modules["documented"] = documented  # dataclasses look their module up
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    exec(next(block for block in blocks if "class RoundRobin" in block), documented.__dict__)
    policy, tree, rng = documented.RoundRobin(seeds=2), Tree(1.0, 0.1), random.Random(0)
    chosen = []
    for ms in (0.9, 0.8, 0.7, None, 0.5):
        choice = policy.choose(tree, rng)
        chosen.append(choice)
        tree.settle(tree.add(choice.parent, choice.action).id, ms)
    assert chosen[:2] == [Choice(0, "seed")] * 2 and chosen[2] == Choice(2, "improve")
