"""The simulator: deterministic, bounded by the floor, noisy, and with the irregularities of each kind."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from simulation.landscapes import KINDS, SimulatedKernel, SyntheticLandscape, generate
from simulation.recorded import RecordedLandscape
from simulation.simulator import simulate

from kernelpro.records import BadInput
from kernelpro.search import POLICIES, Tree, make_policy


def recorded(kind: str, seed: int) -> tuple[SyntheticLandscape, Tree, list[Any]]:
    """A search by mcts, one at a time."""
    task, rng, policy = generate(kind, seed), random.Random(seed), make_policy("mcts")
    tree, hidden = Tree(task.baseline_ms, task.floor_ms), [None]
    for _ in range(60):
        choice = policy.choose(tree, rng)
        node = tree.add(choice.parent, choice.action, choice.donor)
        outcome = task.attempt(tree, node, hidden, rng)
        hidden.append(outcome.hidden)
        tree.settle(node.id, outcome.ms)
    return task, tree, hidden


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", POLICIES)
def test_a_search_is_the_same_for_the_same_seeds(kind: str, name: str) -> None:
    a, b = (simulate(make_policy(name), generate(kind, 3), 40, 2, random.Random(4)) for _ in range(2))
    assert a == b
    assert len(a) == 40
    assert a != simulate(make_policy(name), generate(kind, 5), 40, 2, random.Random(4))


@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_is_never_beaten(kind: str) -> None:
    rng = random.Random(0)
    for seed in range(8):
        task, tree, _ = recorded(kind, seed)
        assert task.floor_ms < task.baseline_ms
        assert all(node.ms >= task.floor_ms for node in tree.nodes if node.ms is not None)
        for _ in range(200):
            kernel = SimulatedKernel(
                rng.randrange(len(task.families)), rng.getrandbits(len(task.methods)), 0.0
            )
            assert task.true_ms(kernel) >= task.floor_ms * (1 - 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_measurement_is_one_to_two_percent(kind: str) -> None:
    for seed in range(8):
        task, tree, hidden = recorded(kind, seed)
        off = [
            math.log(node.ms / task.true_ms(hidden[node.id]))
            for node in tree.nodes[1:]
            if node.ms is not None and task.true_ms(hidden[node.id]) > 1.1 * task.floor_ms
        ]
        assert 0.01 <= task.noise <= 0.02
        assert len(off) < 12 or 0.005 < statistics.pstdev(off) < 0.03


def test_methods_come_with_what_they_need_and_without_what_they_exclude() -> None:
    for kind in KINDS:
        for seed in range(5):
            task, _, hidden = recorded(kind, seed)
            for kernel in hidden[1:]:
                applied = [method for at, method in enumerate(task.methods) if kernel.mask >> at & 1]
                assert not any(method.excludes & kernel.mask for method in applied)
                assert not kernel.mask & ~task.families[kernel.family].allowed


def test_a_gain_shows_only_where_its_resource_dominates() -> None:
    """The strongest method of a task gives a multiple in some kernels of what it gives in others."""
    rng, ratios = random.Random(0), []
    for seed in range(20):
        task = generate("smooth", seed)
        strongest = max(range(len(task.methods)), key=lambda at: task.methods[at].gain)
        masks = [rng.getrandbits(len(task.methods)) & ~(1 << strongest) for _ in range(200)]
        gains = [task.log_time(0, mask) - task.log_time(0, mask | 1 << strongest) for mask in masks]
        ratios.append(max(gains) / max(0.001, min(gains)))
    assert statistics.median(ratios) > 5


def test_a_group_pays_only_together() -> None:
    task = generate("combination", 1)
    groups = {method.group for method in task.methods if method.group}
    assert len(groups) == 3
    for group in groups:
        for at in (at for at in range(len(task.methods)) if group >> at & 1):
            assert task.log_time(0, 1 << at) > task.log_time(0, 0)
    assert any(task.log_time(0, group) < task.log_time(0, 0) for group in groups)


def test_on_a_cliff_nothing_works_for_long_and_43_failures_happen() -> None:
    rng, first = random.Random(0), []
    for seed in range(60):
        task, tree = generate("cliff", seed), Tree(1.0, 0.5)
        tries = 1
        while task.attempt(tree, tree.add(0, "seed"), [], rng).ms is None:
            tries += 1
        first.append(tries)
    assert statistics.median(first) > 8
    assert max(first) > 43


def test_the_popular_family_of_a_deceptive_task_starts_fast_and_ends_early() -> None:
    for seed in range(20):
        easy, good = generate("deceptive", seed).families[:2]
        assert easy.popularity > 3 * good.popularity
        assert sum(easy.start) < sum(good.start)
        assert easy.residual > good.residual == 0.0


def test_fixes_work_sometimes_and_duplicates_happen() -> None:
    fixes, same = [], 0
    for seed in range(25):
        _, tree, hidden = recorded("rugged", seed)
        fixes += [node.state == "ok" for node in tree.nodes if node.action == "debug"]
        for node in tree.nodes:
            if node.action == "improve" and node.state == "ok" and node.parent is not None:
                parent = hidden[node.parent]
                same += (hidden[node.id].mask, hidden[node.id].slop) == (parent.mask, parent.slop)
    assert 0.1 < statistics.mean(fixes) < 0.6
    assert same > 5


def test_refining_beats_independent_samples_on_smooth_tasks() -> None:
    def mean(name: str) -> float:
        tasks = [(generate("smooth", seed), seed) for seed in range(60)]
        return statistics.mean(
            math.log(t.baseline_ms / simulate(make_policy(name), t, 40, 2, random.Random(s))[-1])
            for t, s in tasks
        )

    assert mean("greedy") > mean("best-of-n") + 0.05


def test_a_recorded_run_becomes_a_landscape(tmp_path: Path) -> None:
    task, tree, _ = recorded("rugged", 1)
    nodes = [
        {"id": n.id, "parent": n.parent, "action": n.action, "ms": n.ms, "donor": n.donor} for n in tree.nodes
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"baseline_ms": task.baseline_ms, "floor_ms": task.floor_ms, "nodes": nodes}))
    replay = RecordedLandscape.from_file(path)
    curves = [simulate(make_policy("mcts"), replay, 60, 2, random.Random(seed)) for seed in range(20)]
    assert curves[0] == simulate(
        make_policy("mcts"), RecordedLandscape.from_file(path), 60, 2, random.Random(0)
    )
    assert all(ms >= task.floor_ms for curve in curves for ms in curve)
    ours = statistics.mean(math.log(task.baseline_ms / curve[-1]) for curve in curves)
    theirs = math.log(task.baseline_ms / (tree.best().ms or math.inf))
    assert ours == pytest.approx(theirs, abs=0.7), (
        "searches on the replay end near where the recorded one ended"
    )


def test_a_replay_draws_from_parents_alike() -> None:
    """Improvements of slow kernels gained in the record, those of fast ones failed: so they do in the replay."""
    nodes: list[dict[str, Any]] = []
    for at in range(1, 13):
        nodes.append({"id": at, "parent": 0, "action": "seed", "ms": 1.0 if at % 2 else 0.2})
        nodes.append({"id": 100 + at, "parent": at, "action": "improve", "ms": 0.5 if at % 2 else None})
    nodes += [
        {"id": 200 + at, "parent": 1 if at < 4 else 2, "action": "improve", "ms": 0.5 if at < 4 else None}
        for at in range(8)
    ]
    replay, rng = RecordedLandscape({"baseline_ms": 1.0, "floor_ms": 0.1, "nodes": nodes}), random.Random(0)
    tree = Tree(1.0, 0.1)
    for ms in (1.0, 0.2):
        tree.settle(tree.add(0, "seed").id, ms)
    for _ in range(30):
        assert replay.attempt(tree, tree.add(1, "improve"), [], rng).ms == pytest.approx(0.5)
        assert replay.attempt(tree, tree.add(2, "improve"), [], rng).ms is None


def test_a_combination_is_drawn_from_combinations_or_where_there_are_none_from_improvements() -> None:
    seeds = [{"id": id, "parent": 0, "action": "seed", "ms": 1.0} for id in (1, 2)]
    improved = {"id": 3, "parent": 1, "action": "improve", "ms": 0.5}
    combined = {"id": 4, "parent": 1, "action": "combine", "donor": 2, "ms": 0.25}
    for nodes, ms in (([*seeds, improved], 0.5), ([*seeds, improved, combined], 0.25)):
        replay, tree = (
            RecordedLandscape({"baseline_ms": 1.0, "floor_ms": 0.1, "nodes": nodes}),
            Tree(1.0, 0.1),
        )
        for _ in range(2):
            tree.settle(tree.add(0, "seed").id, 1.0)
        assert replay.attempt(tree, tree.add(2, "combine", 1), [], random.Random(0)).ms == pytest.approx(ms)


def test_a_simulated_combination_takes_over_what_the_other_kernel_does() -> None:
    rng, taken = random.Random(0), 0
    for seed in range(40):
        task, tree = generate("smooth", seed), Tree(1.0, 0.1)
        for _ in range(2):
            tree.settle(tree.add(0, "seed").id, 0.5)
        lent = next(iter(task.applicable(SimulatedKernel(0, 0, 0.0))), None)
        if lent is not None:
            hidden = [None, SimulatedKernel(0, 0, 0.0), SimulatedKernel(1, 1 << lent, 0.0)]
            taken += task.attempt(tree, tree.add(1, "combine", 2), hidden, rng).hidden.step == 1 << lent
    assert taken >= 30


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"baseline_ms": 1.0, "floor_ms": 0.1, "nodes": []},
        {"baseline_ms": 1.0, "floor_ms": 0.1, "nodes": [{"id": 1, "parent": 7, "action": "seed", "ms": 1.0}]},
        {
            "baseline_ms": 1.0,
            "floor_ms": 0.1,
            "nodes": [{"id": 1, "parent": 0, "action": "seed", "ms": -1.0}],
        },
    ],
)
def test_a_record_that_cannot_be_replayed_is_bad_input(record: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="cannot be replayed"):
        RecordedLandscape(record)


def test_a_file_that_is_no_record_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("nodes")
    with pytest.raises(BadInput, match="cannot be read"):
        RecordedLandscape.from_file(tmp_path / "run.json")
