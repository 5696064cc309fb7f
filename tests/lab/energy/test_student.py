"""Intervals of a few windows contain the true mean in 95 % of cases."""

from __future__ import annotations

import math
import random

import pytest

from kernelpro.lab.energy import student


@pytest.mark.parametrize("count", [3, 4, 5])
def test_nineteen_of_twenty_hold_the_truth(count: int) -> None:
    rng, trials = random.Random(1), 2000
    hits = 0
    for _ in range(trials):
        interval = student.mean_interval([0.09 * math.exp(rng.gauss(0, 0.003)) for _ in range(count)])
        assert interval.low <= interval.value <= interval.high
        hits += interval.low <= 0.09 <= interval.high
    assert 0.93 < hits / trials < 0.97


def test_a_ratio_is_never_known_better_than_two_processes_differ() -> None:
    interval = student.ratio_interval([0.9, 0.9, 0.9])
    assert interval.low == pytest.approx(0.9 * math.exp(-0.0075)) and interval.high == pytest.approx(
        0.9 * math.exp(0.0075)
    )
