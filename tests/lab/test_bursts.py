"""Bursts of which something held up a part: what is left out, and when the rest says enough."""

from __future__ import annotations

import weakref
from itertools import cycle
from typing import Any

import pytest
import torch

from kernelpro.lab.measure.bursts import MAX_CALLS, MAX_INPUTS, Bursts
from kernelpro.lab.measure.samples import BurstResult, BurstSlopes
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.records import Status

OWN_MS, PLAIN_MS = 0.13, 0.6


class Child:
    """A participant whose bursts of one call are held up by so many milliseconds, one after the other."""

    copies_burst_outputs = False

    def __init__(self, held_up: list[float]):
        self._held_up, self.asked = cycle(held_up), 0

    def prepare(self, seconds: float, **extra: Any) -> None:
        pass

    def burst(self, batch: list[Any], spec: OutputSpec, seconds: float, prelaunch: bool) -> BurstResult:
        self.asked += 1
        late = next(self._held_up) if len(batch) == 1 else 0.0
        wall_ms = PLAIN_MS + OWN_MS * (len(batch) - 1) + late
        return BurstResult([[] for _ in batch], wall_ms, 0.0, prelaunched=True)


def slopes(child: Any, effort: Any = "full") -> BurstSlopes | str:
    """Or why there are none."""
    spec, seeds = OutputSpec((((1024,), torch.float32),)), list(range(MAX_INPUTS))
    bursts = Bursts(
        child, spec, lambda seed: [], lambda outputs, seed: None, seeds, 1.0, effort, prelaunch=True
    )
    return bursts.slopes(MAX_CALLS, 4e12, PLAIN_MS, OWN_MS) or bursts.skip_reason


@pytest.mark.parametrize("held_up", [[0.0], [0.0, 0.0, 9.0], [9.0] * 6 + [0.0] * 30])
def test_what_was_held_up_is_left_out_and_the_rest_tells(held_up: list[float]) -> None:
    found = slopes(Child(held_up))
    assert isinstance(found, BurstSlopes) and torch.allclose(found.ms, torch.full_like(found.ms, OWN_MS))


@pytest.mark.parametrize(
    ("held_up", "effort"), [([9.0], "full"), ([9.0, 9.0, 0.0], "full"), ([9.0] * 6 + [0.0] * 30, "quick")]
)
def test_bursts_say_nothing_where_most_were_held_up(held_up: list[float], effort: str) -> None:
    child = Child(held_up)
    assert slopes(child, effort) == "bursts were delayed"
    assert child.asked == 2 * (1 + (6 if effort == "quick" else 30)), "as often as the effort allows"


def test_where_all_agree_nobody_is_asked_twice() -> None:
    child = Child([0.0])
    assert isinstance(slopes(child), BurstSlopes) and child.asked == 2 * (1 + 6)


def test_no_more_than_one_burst_of_outputs_is_held() -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    class Lending(Child):
        def burst(self, *given: Any) -> BurstResult:
            assert not alive, "those of the burst before"
            burst = super().burst(*given)
            for outputs in burst.outputs:
                outputs.append(torch.zeros(1024))
                alive.add(outputs[0])
            return burst

    assert isinstance(slopes(Lending([0.0])), BurstSlopes)


def test_where_memory_does_not_do_that_is_said() -> None:
    class Small(Child):
        def burst(self, *given: Any) -> BurstResult:
            raise CandidateRejected(Status.CRASHED, "CUDA out of memory")

    assert slopes(Small([0.0])) == "the candidate has too little memory for bursts"
