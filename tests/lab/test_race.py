"""Which inputs a candidate meets."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelpro.lab.judge.participant import Expected
from kernelpro.lab.judge.race import Race


@pytest.mark.parametrize(("shape", "anew"), [((), True), ((1024,), True), ((1025,), False)])
def test_where_answers_are_short_no_two_candidates_are_asked_the_same(shape: tuple[int, ...], anew: bool) -> None:
    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        new_seed=lambda: dice.getrandbits(48), secret=dice, expected=Expected(((shape, torch.float32),)), target="cpu"
    )
    race = Race(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    first, second = race.draw(30), race.draw(30)
    assert len(set(first)) == len(set(second)) == 30
    assert set(first).isdisjoint(second) == anew
    assert set(race.for_bursts()).isdisjoint(race.for_bursts()) == anew
    assert set(race.for_calls_alone()).isdisjoint(race.for_calls_alone()) == anew


def test_however_early_rounds_end_there_are_some_of_both_kinds() -> None:
    bench: Any = SimpleNamespace(
        new_seed=lambda: 1, secret=random.Random(1), expected=Expected((((4,), torch.float32),)), target="cuda"
    )
    race = Race(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    for count in (10, 15, 40, 121):
        sealed = race._some_sealed(count)
        for made in range(4, count + 1, 4):
            assert len(sealed & set(range(made))) == made // 2
