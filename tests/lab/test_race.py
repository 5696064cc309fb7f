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
