"""The first limit that is reached ends a run, and the reason names it."""

from __future__ import annotations

import re

import pytest

from kernelpro.cli.parsing import parse_budget
from kernelpro.engine.budget import Budget
from kernelpro.records import BadInput, Cost, Limits, Step


def test_each_limit_ends_the_run() -> None:
    assert "2 candidates" in _after(Limits(candidates=2), candidates=2).exhausted()
    assert _after(Limits(candidates=2), candidates=1).exhausted() == ""
    assert "0.5 dollars" in _after(Limits(0, dollars=0.5), Step(1, 0, "seed", cost=Cost(0.5))).exhausted()
    assert "100 tokens" in _after(Limits(0, tokens=100), Step(1, 0, "seed", cost=Cost(0, 60, 40))).exhausted()
    assert "device seconds" in Budget(Limits(0, device_seconds=3), device_seconds=4.0).exhausted()
    assert "wall seconds" in Budget(Limits(0, wall_seconds=10), spent_before=11).exhausted()


def _after(given: Limits, *steps: Step, candidates: int = 0) -> Budget:
    budget = Budget(given)
    for _ in range(candidates):
        budget.begin()
    for step in steps:
        budget.settle(step)
    return budget


def test_the_floor_ends_it_too() -> None:
    budget = Budget(Limits(stop_at_floor=0.95))
    assert budget.floor_reached(1.2, 1.0) == "" and budget.floor_reached(None, 1.0) == ""
    assert "96% of the floor" in budget.floor_reached(1.04, 1.0)
    assert Budget(Limits(stop_at_floor=0)).floor_reached(1.0, 1.0) == ""


def test_limits_are_read_as_people_write_them() -> None:
    texts = ("candidates=12", "wall=2h", "device=90s", "dollars=1.5", "tokens=2e6")
    assert parse_budget(texts, Limits(), 0.9) == Limits(12, 1.5, 2_000_000, 7200.0, 90.0, 0.9)


@pytest.mark.parametrize(
    "text",
    [
        *("candidates", "candidates=many", "candidates=3h", "hours=3", "wall=-1"),
        *("dollars=1.2.3", "dollars=.", "candidates=1e999", "wall=1e308d"),
    ],
)
def test_a_limit_that_makes_no_sense_is_one_clear_line(text: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"--budget {text}: use quick, normal, max, or NAME=NUMBER")):
        parse_budget((text,), Limits())
