"""Intervals of a few windows hold the truth as often as they say."""

from __future__ import annotations

import math
import random

import pytest

from kernelpro.lab.energy import few


@pytest.mark.parametrize("count", [3, 4, 5])
def test_nineteen_of_twenty_hold_the_truth(count: int) -> None:
    dice, tries = random.Random(1), 2000
    held = 0
    for _ in range(tries):
        found = few.interval([0.09 * math.exp(dice.gauss(0, 0.003)) for _ in range(count)])
        assert found.low <= found.value <= found.high
        held += found.low <= 0.09 <= found.high
    assert 0.93 < held / tries < 0.97


def test_a_ratio_is_never_known_better_than_two_processes_differ() -> None:
    found = few.ratio_interval([0.9, 0.9, 0.9])
    assert found.low == pytest.approx(0.9 * math.exp(-0.0075)) and found.high == pytest.approx(
        0.9 * math.exp(0.0075)
    )
