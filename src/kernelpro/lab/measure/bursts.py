"""Bursts: what a call costs when several follow each other, by the parent's clock alone.

One call seen from outside carries the protocol's cost, which differs by up to 0.1 ms from process to
process: too coarse for a kernel of 0.05 ms. The difference of two bursts does not carry it:

    slope = (wall of n calls - wall of 1 call) / (n - 1)

Inputs of all calls are fresh and lie in buffer sets of their own; every output is verified. Where they can be (a device takes
about a thousand launches), all calls are launched before the clock starts (participant.py), and an honest kernel's slope
is what its own clock shows; else at most the longer of that and what its host side takes, since one of the two is always
busy. Time hidden from the device's clock (on a side stream, by a falsified event) shows in full.

Outputs that share memory from call to call (a private buffer, a captured graph) are copied by the child
after each call; the time of that copy is granted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernelpro.lab.measure import timing
from kernelpro.lab.measure.participant import TRIES, Participant
from kernelpro.lab.sandbox.answers import Burst, CandidateRejected, Expected
from kernelpro.records import Effort

LONGEST_MS = 2.0
"""Above, the parent's clock resolves a single call well enough: 0.1 ms is 5 %."""
MOST_CALLS = 16
_WALL_MS, _FINEST_MS = 0.15, 0.010
"""A burst's wall differs by so much from time to time on an H200 host, however long it is: the longer, the finer."""
_PAIRS, _FEWEST_PAIRS = 6, 3
_TURNS = {"quick": 1, "normal": 2, "full": 5}
"""Where the first six scatter too much to tell (some milliseconds of a call were the operating system's), or too few of them say
anything, six more are asked for, at most so many times."""
_CALLS = (1 + _PAIRS) * (1 + MOST_CALLS)
"""Of a candidate whose bursts agree."""
MOST_INPUTS = max(_TURNS.values()) * _CALLS
"""None is met twice."""
_SLOW_START_MS, _NAMING_MS = 0.2, 0.05
"""A burst of one call may cost so much more than a plain call, and so much for each output that it names (as many as the long one);
beyond, it was held up, perhaps to make the difference small, and its pair says nothing. Where most pairs do, bursts say nothing."""
_COPY_MS = 0.006
"""Start of a copy kernel."""
_COPY_SHARE = 1.3


@dataclass(frozen=True)
class Slopes:
    ms: torch.Tensor
    """Milliseconds a call, one value a pair of bursts."""
    host_ms: float
    """What the child says its host side took for a call; 0 where it is no part of the slope."""
    slack_ms: float
    """How well the median of some slopes repeats."""


class Bursts:
    """Asks one participant for pairs of bursts and verifies what they give."""

    def __init__(
        self,
        participant: Participant,
        expected: Expected,
        inputs: Callable[[int], list[torch.Tensor]],
        check: Callable[[list[torch.Tensor], int], None],
        seeds: list[int],
        seconds: float,
        effort: Effort,
        ahead: bool = False,
    ):
        """`ahead`: launched before their inputs are there, so that the host is no part of them."""
        self._ahead = ahead
        self._participant, self._expected, self._inputs, self._check = participant, expected, inputs, check
        self._seconds, self._most_pairs = seconds, _PAIRS * _TURNS[effort]
        self._next, self._fresh = list(seeds), list[int]()
        self.silence = ""
        """Why they said nothing."""

    def slopes(self, calls: int, bandwidth: float, plain_ms: float, own_ms: float) -> Slopes | None:
        """None where bursts say nothing: memory does not do for them, or one call mostly takes far longer than a plain one."""
        granted = _SLOW_START_MS + _NAMING_MS * calls * len(self._expected.shapes)
        pairs: list[tuple[Burst, Burst]] = []
        made = 0
        try:
            self._warm_up(calls)
            copying = self._copy_ms(bandwidth) if self._participant.copies else 0.0
            while made < self._most_pairs and (
                _are_few(pairs, made) or timing.scattered(_per_call(pairs, calls) - copying, own_ms)
            ):
                asked = [self._pair(calls) for _ in range(_PAIRS)]
                pairs += [pair for pair in asked if pair[0].wall_ms <= plain_ms + granted]
                made += len(asked)
        except (
            torch.OutOfMemoryError
        ):  # the judge's own, who holds all inputs, outputs and answers of a burst
            torch.cuda.empty_cache()
            self.silence = "the device's memory does not do for bursts"
            return None
        except CandidateRejected as error:
            if "out of memory" not in error.reason:
                raise
            self.silence = "its memory does not do for bursts"
            return None
        if _are_few(pairs, made):
            self.silence = "bursts were held up"
            return None
        host = 0.0 if self._ahead else float(torch.tensor([many.host_ms for _, many in pairs]).median())
        return Slopes(_per_call(pairs, calls) - copying, host, max(_FINEST_MS, _WALL_MS / (calls - 1)))

    def _warm_up(self, calls: int) -> None:
        """The first bursts allocate, and show whether so many calls can be launched ahead; they are verified, not timed."""
        for _ in range(TRIES):
            if self._pair(calls)[1].launched or not self._ahead:
                return
        self._ahead = False

    def _copy_ms(self, bandwidth: float) -> float:
        return _COPY_MS + 1e3 * _COPY_SHARE * 2 * self._expected.nbytes / bandwidth

    def _pair(self, calls: int) -> tuple[Burst, Burst]:
        order = [1, calls]
        random.shuffle(order)
        bursts = {count: self._burst(count) for count in order}
        return bursts[1], bursts[calls]

    def _burst(self, calls: int) -> Burst:
        if (
            len(self._fresh) < calls
        ):  # those that every candidate is asked about come first: their inputs and answers are at hand
            self._fresh += random.sample(self._next[:_CALLS], _CALLS)
            del self._next[:_CALLS]
        seeds = [self._fresh.pop() for _ in range(calls)]
        batch = [self._inputs(seed) for seed in seeds]
        self._participant.prepare(self._seconds, warm=True)
        burst = self._participant.burst(batch, self._expected, self._seconds, self._ahead)
        if burst is None:  # it copies from now on
            return self._burst(calls)
        for seed, outputs in zip(seeds, burst.outputs, strict=True):
            self._check(outputs, seed)
        return replace(burst, outputs=[])  # of all bursts together they would fill the device


def _are_few(pairs: list[tuple[Burst, Burst]], made: int) -> bool:
    return len(pairs) < max(_FEWEST_PAIRS, made / 2)


def _per_call(pairs: list[tuple[Burst, Burst]], calls: int) -> torch.Tensor:
    return torch.tensor(
        [(many.wall_ms - one.wall_ms) / (calls - 1) for one, many in pairs], dtype=torch.float64
    )
