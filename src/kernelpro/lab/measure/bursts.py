"""Bursts: what a call costs when several follow each other, by the parent's clock alone.

The parent's time of one call includes the protocol's cost, which differs by up to 0.1 ms between processes:
too coarse for a kernel of 0.05 ms. The difference of two bursts does not include it:

    slope = (wall of n calls - wall of 1 call) / (n - 1)

All calls have fresh inputs in buffer sets of their own; every output is verified. Where possible (a device
queues about a thousand launches), all calls are launched before the clock starts (cuda_participant.py), and
an honest kernel's slope is what its own clock shows; else at most the longer of that and what its host side
takes, since one of the two is always busy. Time hidden from the device's clock (on a side stream, by a
falsified event) shows in full.

Outputs that share memory from call to call (a private buffer, a captured graph) are copied by the child after
each call; the time of that copy is subtracted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from kernelpro.lab.measure.clocks import is_inconclusive
from kernelpro.lab.measure.cuda_participant import PRELAUNCH_TRIES, CudaParticipant
from kernelpro.lab.measure.samples import BurstResult, BurstSlopes
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.records import Effort

MAX_KERNEL_MS = 2.0
"""Above, the parent's clock resolves a single call well enough: 0.1 ms is 5 %."""
MAX_CALLS = 16
_WALL_MS, _FINEST_MS = 0.15, 0.010
"""The wall time of a burst varies by so much on an H200 host, however long it is: the longer, the finer the
slope."""
_PAIRS, _MIN_PAIRS = 6, 3
_MAX_PASSES = {"quick": 1, "normal": 2, "full": 5}
"""Where the first six pairs scatter too much (the operating system took some milliseconds of a call), or too
few of them are usable, six more are measured, at most so many times."""
_CALLS_PER_PASS = (1 + _PAIRS) * (1 + MAX_CALLS)
"""Calls of a candidate whose bursts agree."""
MAX_INPUTS = max(_MAX_PASSES.values()) * _CALLS_PER_PASS
"""No inputs are used twice."""
_SLOW_START_MS, _OUTPUT_DESCRIPTION_MS = 0.2, 0.05
"""A burst of one call may cost so much more than a plain call, and so much for each output that it describes
(as many as the long one); beyond, it was delayed, perhaps to make the difference small, and its pair is not
used. Where most pairs are not, bursts give no result."""
_COPY_MS = 0.006
"""Start of a copy kernel."""
_COPY_SHARE = 1.3

Pair = tuple[BurstResult, BurstResult]
"""A burst of one call, and one of many."""


class Bursts:
    """Measures pairs of bursts of one participant and verifies their outputs."""

    def __init__(
        self,
        participant: CudaParticipant,
        spec: OutputSpec,
        inputs: Callable[[int], list[torch.Tensor]],
        check: Callable[[list[torch.Tensor], int], None],
        seeds: list[int],
        seconds: float,
        effort: Effort,
        prelaunch: bool = False,
    ):
        """`prelaunch`: calls are launched before their inputs are written, so that the slope excludes the
        host."""
        self._prelaunch = prelaunch
        self._participant, self._spec, self._inputs, self._check = participant, spec, inputs, check
        self._seconds, self._max_pairs = seconds, _PAIRS * _MAX_PASSES[effort]
        self._remaining_seeds, self._shuffled_seeds = list(seeds), list[int]()
        self.skip_reason = ""
        """Why there is no result."""

    def slopes(self, calls: int, bandwidth: float, plain_ms: float, own_ms: float) -> BurstSlopes | None:
        """Milliseconds a call; None, with `skip_reason`, where memory is too small or most bursts were
        delayed.

        `plain_ms`: the parent's time of one call in a round.
        """
        limit_ms = plain_ms + _SLOW_START_MS + _OUTPUT_DESCRIPTION_MS * calls * len(self._spec.tensors)
        pairs: list[Pair] = []
        measured = 0
        try:
            self._warm_up(calls)
            copy_ms = self._copy_ms(bandwidth) if self._participant.copies_burst_outputs else 0.0
            while measured < self._max_pairs and (
                _too_few(pairs, measured) or is_inconclusive(_per_call(pairs, calls) - copy_ms, own_ms)
            ):
                new_pairs = [self._pair(calls) for _ in range(_PAIRS)]
                pairs += [pair for pair in new_pairs if pair[0].wall_ms <= limit_ms]
                measured += len(new_pairs)
        except torch.OutOfMemoryError:  # of the judge, which holds all inputs, outputs and truths of a burst
            torch.cuda.empty_cache()
            self.skip_reason = "the device has too little memory for bursts"
            return None
        except CandidateRejected as error:
            if "out of memory" not in error.reason:
                raise
            self.skip_reason = "the candidate has too little memory for bursts"
            return None
        if _too_few(pairs, measured):
            self.skip_reason = "bursts were delayed"
            return None
        host = 0.0 if self._prelaunch else float(torch.tensor([many.host_ms for _, many in pairs]).median())
        return BurstSlopes(_per_call(pairs, calls) - copy_ms, host, max(_FINEST_MS, _WALL_MS / (calls - 1)))

    def _warm_up(self, calls: int) -> None:
        """The first bursts allocate memory and show whether they can be prelaunched; verified, not timed."""
        for _ in range(PRELAUNCH_TRIES):
            if self._pair(calls)[1].prelaunched or not self._prelaunch:
                return
        self._prelaunch = False

    def _copy_ms(self, bandwidth: float) -> float:
        return _COPY_MS + 1e3 * _COPY_SHARE * 2 * self._spec.nbytes / bandwidth

    def _pair(self, calls: int) -> Pair:
        order = [1, calls]
        random.shuffle(order)
        bursts = {count: self._burst(count) for count in order}
        return bursts[1], bursts[calls]

    def _burst(self, calls: int) -> BurstResult:
        if len(self._shuffled_seeds) < calls:
            # the seeds that all candidates share come first: their inputs and truths are cached
            self._shuffled_seeds += random.sample(self._remaining_seeds[:_CALLS_PER_PASS], _CALLS_PER_PASS)
            del self._remaining_seeds[:_CALLS_PER_PASS]
        seeds = [self._shuffled_seeds.pop() for _ in range(calls)]
        batch = [self._inputs(seed) for seed in seeds]
        self._participant.prepare(self._seconds, warm=True)
        burst = self._participant.burst(batch, self._spec, self._seconds, self._prelaunch)
        if burst is None:  # the child copies its outputs from now on
            return self._burst(calls)
        for seed, outputs in zip(seeds, burst.outputs, strict=True):
            self._check(outputs, seed)
        return replace(burst, outputs=[])  # the outputs of all bursts together would fill the device


def _too_few(pairs: list[Pair], measured: int) -> bool:
    return len(pairs) < max(_MIN_PAIRS, measured / 2)


def _per_call(pairs: list[Pair], calls: int) -> torch.Tensor:
    return torch.tensor(
        [(many.wall_ms - one.wall_ms) / (calls - 1) for one, many in pairs], dtype=torch.float64
    )
