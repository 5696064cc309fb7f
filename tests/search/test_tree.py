"""The tree: its statistics equal a recount, its reward is calibrated, and it rejects invalid operations."""

from __future__ import annotations

import ast
import itertools
import random
import sys
from pathlib import Path

import pytest

import kernelpro.search
from kernelpro.search import Tree
from kernelpro.search.choice import expand

Event = tuple[str, int, float | None]


def grown(seed: int, steps: int, baseline: float = 2.0, floor: float = 0.3) -> tuple[Tree, list[Event]]:
    """A tree after random operations, and the operations."""
    rng, tree, events = random.Random(seed), Tree(baseline, floor), []
    for _ in range(steps):
        pending = [node.id for node in tree.nodes if node.state == "pending"]
        if pending and rng.random() < 0.5:
            id, ms = rng.choice(pending), None if rng.random() < 0.4 else rng.uniform(0.2, 5.0)
            void = ms is None and rng.random() < 0.3
            tree.settle(id, ms, void)
            events.append(("void" if void else "settle", id, ms))
        else:
            choice = expand(rng.choice([node for node in tree.nodes if node.state in ("ok", "failed")]))
            tree.add(choice.parent, choice.action)
            events.append((choice.action, choice.parent, None))
    return tree, events


def subtree(tree: Tree, id: int) -> list[int]:
    return [id] + [below for child in tree.nodes[id].children for below in subtree(tree, child)]


@pytest.mark.parametrize("seed", range(30))
def test_statistics_equal_a_recount(seed: int) -> None:
    tree, _ = grown(seed, 120)
    for node in tree.nodes:
        below = [tree.nodes[id] for id in subtree(tree, node.id)]
        rewards = [descendant.reward for descendant in below]
        assert node.pending == sum(descendant.state == "pending" for descendant in below)
        assert node.failures == sum(descendant.state in ("failed", "void") for descendant in below)
        assert node.visits == len(below) - node.pending
        assert node.working == sum(descendant.state == "ok" for descendant in below)
        assert node.total == sum(rewards)
        assert node.best == max(rewards)
        assert node.depth == (0 if node.parent is None else tree.nodes[node.parent].depth + 1)
        assert node.reward == (tree.reward(node.ms) if node.ms is not None else 0.0)
    working = [node for node in tree.nodes[1:] if node.state == "ok"]
    ranking = sorted(working, key=lambda node: (node.ms or 0.0, node.id))
    assert tree.leaders(5) == ranking[:5]
    assert list(tree.ranked()) == ranking
    assert tree.best().ms == min([2.0] + [node.ms for node in working if node.ms is not None])
    assert tree.leaves == [
        node.id for node in tree.nodes[1:] if node.state in ("ok", "failed") and not node.children
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_results_leaves_no_trace(seed: int) -> None:
    tree, events = grown(seed, 150)
    rebuilt = Tree(2.0, 0.3)
    results = {id: (ms, what == "void") for what, id, ms in events if what in ("settle", "void")}
    for node in tree.nodes[1:]:
        rebuilt.add(node.parent or 0, node.action, node.donor)
        if node.id in results:
            rebuilt.settle(node.id, *results[node.id])
    assert rebuilt.nodes == tree.nodes
    assert (rebuilt.leaves, rebuilt.leaders(99)) == (tree.leaves, tree.leaders(99))


def test_the_reward_is_logarithmic_between_baseline_and_floor() -> None:
    tree = Tree(8.0, 0.5)
    assert tree.reward(8.0) == pytest.approx(0.2, abs=1e-6)
    assert tree.reward(0.5) == pytest.approx(1.0, abs=1e-6)
    steps = [tree.reward(ms) for ms in (8.0, 4.0, 2.0, 1.0, 0.5)]
    assert [b - a for a, b in itertools.pairwise(steps)] == pytest.approx([0.2] * 4, abs=1e-5)


@pytest.mark.parametrize("floor", [0.5, 7.9, 8.0, 20.0, 0.0, float("nan"), float("inf")])
def test_the_reward_grows_with_speed_and_stays_in_bounds_whatever_the_floor(floor: float) -> None:
    tree = Tree(8.0, floor)
    rewards = [tree.reward(ms) for ms in (1e6, 16.0, 10.0, 8.0, 6.0, 4.0, 1.0, 0.4, 1e-3)]
    assert rewards == sorted(rewards)
    assert len(set(rewards[1:])) == len(rewards) - 1
    assert rewards[0] > 0.0
    assert rewards[-1] < 1.8


def test_a_slow_kernel_is_worth_more_than_a_failure_and_does_not_become_the_best() -> None:
    tree = Tree(1.0, 0.5)
    tree.settle(tree.add(0, "seed").id, None)
    tree.settle(tree.add(0, "seed").id, 5.0)
    assert tree.nodes[2].reward > tree.nodes[1].reward == 0.0
    assert tree.best().id == 0
    assert [node.id for node in tree.leaders(3)] == [2]
    tree.settle(tree.add(2, "improve").id, 0.9)
    assert tree.best().id == 3


def test_it_refuses_what_makes_no_sense() -> None:
    tree = Tree(1.0, 0.5)
    seed = tree.add(0, "seed")
    with pytest.raises(ValueError, match="pending"):
        tree.add(seed.id, "improve")
    tree.settle(seed.id, None)
    with pytest.raises(ValueError, match="settled already"):
        tree.settle(seed.id, 1.0)
    for parent, action in ((seed.id, "improve"), (seed.id, "seed"), (0, "debug"), (0, "root")):
        with pytest.raises(ValueError, match="does not fit"):
            tree.add(parent, action)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        tree.settle(tree.add(0, "seed").id, 0.0)
    first, second = tree.add(0, "seed"), tree.add(0, "seed")
    for node in (first, second):
        tree.settle(node.id, 0.8)
    for parent, action, other in (
        (first.id, "combine", None),
        (first.id, "improve", second.id),
        (0, "combine", second.id),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            tree.add(parent, action, other)  # type: ignore[arg-type]
    for other in (seed.id, first.id, 0):
        with pytest.raises(ValueError, match=f"cannot be combined with node {other}"):
            tree.add(first.id, "combine", other)
    with pytest.raises(ValueError, match="void and have a time"):
        tree.settle(tree.add(0, "seed").id, 1.0, void=True)
    with pytest.raises(ValueError, match="positive"):
        Tree(0.0, 0.5)


def test_search_imports_only_the_standard_library_and_records() -> None:
    for path in Path(kernelpro.search.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                ours = name.startswith(("kernelpro.search", "kernelpro.records"))
                assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{path.name}: {name}"
