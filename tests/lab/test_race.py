"""Which inputs a candidate meets."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelpro.lab.judge.tolerance import Errors
from kernelpro.lab.measure.race import Race
from kernelpro.lab.measure.timing import Rounds, Sample
from kernelpro.lab.sandbox.answers import Expected


@pytest.mark.parametrize(("shape", "anew"), [((), True), ((1024,), True), ((1025,), False)])
def test_where_answers_are_short_no_two_candidates_are_asked_the_same(
    shape: tuple[int, ...], anew: bool
) -> None:
    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        expected=Expected(((shape, torch.float32),)),
        target="cpu",
    )
    race = Race(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    first, second = race.draw(30), race.draw(30)
    assert len(set(first)) == len(set(second)) == 30
    assert set(first).isdisjoint(second) == anew
    assert set(race.for_bursts()).isdisjoint(race.for_bursts()) == anew
    assert set(race.for_calls_alone()).isdisjoint(race.for_calls_alone()) == anew


def test_however_early_rounds_end_there_are_some_of_both_kinds() -> None:
    bench: Any = SimpleNamespace(
        new_seed=lambda: 1,
        secret=random.Random(1),
        expected=Expected((((4,), torch.float32),)),
        target="cuda",
    )
    race = Race(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    for count in (10, 15, 40, 121):
        sealed = race._some_sealed(count)
        for made in range(4, count + 1, 4):
            assert len(sealed & set(range(made))) == made // 2


@pytest.mark.parametrize(("filling", "ahead"), [(0.1, True), (2.1, False)])
def test_who_seems_to_have_a_head_start_is_timed_again_without_being_launched_ahead(
    filling: float, ahead: bool
) -> None:
    asked: list[tuple[bool, set[int]]] = []

    class Told(Race):
        def _pass(self, participant: Any, rounds: Rounds, seeds: list[int], alive: Any) -> None:
            asked.append((self.ahead, set(seeds)))
            for index in range(len(seeds)):
                sealed, gated = index % 2 == 0, self.ahead and index % 2 == 0
                took = {"candidate": filling if gated else 0.0, "compile": 0.1 if gated else 0.0}
                rounds.add({name: Sample(1.0, 1.5 + ms, sealed, filling=ms) for name, ms in took.items()})

    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        expected=Expected((((4096,), torch.float32),)),
        target="cuda",
    )
    bench.options = SimpleNamespace(effort="normal", give_up_ms=0.0)
    before = Rounds({"compile": [Sample(1.0, 1.6, index % 2 == 0, filling=0.1) for index in range(20)]})
    baselines: Any = SimpleNamespace(
        anchor="compile", ahead={"compile"}, warm_ms={"compile": 1.0}, seals=True, rounds=before
    )
    baselines.excess_protocol_ms = lambda ahead: {}
    race = Told(bench, baselines, lambda outputs, seed, name: (Errors(0.0, 0.0), 0.0))
    race._call = lambda participant, seed, sealed=False: Sample(1.0, 1.5, sealed)  # type: ignore[method-assign]
    participant: Any = SimpleNamespace(ahead=True)
    rounds, _, _ = race.run(participant, Errors(0.0, 0.0), 0.0, lambda: None)
    assert race.ahead == ahead and [told for told, _ in asked] == [True, False][: 1 if ahead else 2]
    assert bool(rounds.held_back) != ahead and ("compile" in race.slowed(rounds)) != ahead
    assert not asked[0][1] & asked[-1][1] or ahead
