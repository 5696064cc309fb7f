"""Times a candidate beside the baselines: interleaved rounds, each output verified before the next inputs are
shown."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kernelpro.lab.measure import clocks, environment
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.bursts import MAX_INPUTS
from kernelpro.lab.measure.errors import Errors
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.rounds import Kind, Rounds, was_slowed
from kernelpro.lab.measure.samples import Sample
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import BadInput

_ROUNDS = {"quick": 15, "normal": 40, "full": 120}
_MIN_ROUNDS = 10
_ROUND_SECONDS = {"quick": 5.0, "normal": 15.0, "full": 60.0}
"""The number of rounds is fixed before a candidate is seen: so many, fewer where the baseline alone would
take longer than this. Only a candidate above `give_up_ms` is timed for fewer, and never for fewer than
_MIN_ROUNDS; for more, see _MAX_PASSES."""
_MAX_PASSES = 4
"""On a GPU, at full effort: so many times the rounds, for as long as the ratio is not settled."""
_SOLO_CALLS = 20
_SHORT_ANSWER_BYTES = 4096


@dataclass(frozen=True)
class Accuracy:
    """The worst errors of several outputs, and the worst share of the limit: above 1 an output is wrong."""

    errors: Errors = field(default_factory=lambda: Errors(0.0, 0.0))
    limit_share: float = 0.0

    def combine(self, other: Accuracy) -> Accuracy:
        """The worse of both."""
        return Accuracy(self.errors.combine(other.errors), max(self.limit_share, other.limit_share))


Check = Callable[[list[torch.Tensor], int, str], Accuracy]
"""The accuracy of the outputs for the inputs of a seed and distribution; raises where they are wrong."""


def _with_spare(count: int) -> int:
    """A pool an eighth larger, so that the inputs still to come cannot be known from those that have come."""
    return count + max(4, count // 8)


class RoundRunner:
    """Runs the rounds of one task, for one candidate after another."""

    def __init__(self, bench: Bench, baselines: Baselines, check: Check):
        self._bench, self._baselines, self._check = bench, baselines, check
        self.seeds = [bench.new_seed() for _ in range(_with_spare(_ROUNDS["full"] * 2))]
        self._extra_seeds, self._solo_seeds = list[int](), [bench.new_seed() for _ in range(_SOLO_CALLS)]
        self._burst_seeds = [bench.new_seed() for _ in range(MAX_INPUTS)]
        self._accuracy = Accuracy()
        self.prelaunch = False
        """Sealed calls of the current candidate, and of the baselines beside it, are prelaunched."""
        self.retried_without_prelaunch = False
        """Sealed calls were prelaunched at first, and showed a head start."""

    def draw_seeds(self, count: int, turn: int = 0) -> list[int]:
        """Seeds for `count` rounds, resampled for each candidate from a small pool whose inputs and truths
        are cached.

        No two turns share a seed: a candidate may remember what it was asked before. Where outputs are so
        short that one candidate could pass them on to the next (which pages are cached, how long something
        takes), no seed is used twice.
        """
        if self._is_short:
            return [self._bench.new_seed() for _ in range(count)]
        size = _with_spare(count)
        missing = (turn + 1) * size - len(self.seeds) - len(self._extra_seeds)
        self._extra_seeds += [self._bench.new_seed() for _ in range(missing)]
        pool = (self.seeds + self._extra_seeds)[turn * size : (turn + 1) * size]
        return self._bench.secret.sample(pool, count)

    def burst_seeds(self) -> list[int]:
        """Seeds for a candidate's bursts."""
        return self._fresh_if_short(self._burst_seeds)

    def solo_seeds(self) -> list[int]:
        """Seeds for a candidate's calls without baselines between them."""
        return self._fresh_if_short(self._solo_seeds)

    def _fresh_if_short(self, seeds: list[int]) -> list[int]:
        return [self._bench.new_seed() for _ in seeds] if self._is_short else seeds

    @property
    def _is_short(self) -> bool:
        return self._bench.output_spec.nbytes <= _SHORT_ANSWER_BYTES

    def round_count(self, passes: int = 1) -> int:
        """How many rounds to run: from the baselines alone, so that no candidate can shorten its own
        trial."""
        effort = self._bench.options.effort
        slowest = max(self._baselines.warm_ms.values())
        planned = passes * _ROUNDS[effort] * (2 if slowest < 0.2 else 1)
        affordable = int(_ROUND_SECONDS[effort] / (4e-3 * slowest))
        return max(_MIN_ROUNDS, min(planned, affordable))

    def run(
        self, participant: Participant, accuracy: Accuracy, report: Callable[[], None]
    ) -> tuple[Rounds, Accuracy]:
        """The rounds, and the worst accuracy so far and in them; calls `report` before each round."""
        self._accuracy = accuracy
        self.prelaunch = participant.can_prelaunch and self._baselines.anchor in self._baselines.prelaunchable
        rounds = self._run_passes(participant, report)
        self.retried_without_prelaunch = self.prelaunch and self._has_head_start(rounds)
        if self.retried_without_prelaunch:
            self.prelaunch = False
            rounds = self._run_passes(participant, report, self._max_passes())
        if self.slowed_baselines(rounds):
            rounds.solo["candidate"] = [
                self._call(participant, seed, number % 2 == 0)
                for number, seed in enumerate(self.solo_seeds())
            ]
        return rounds, self._accuracy

    def _run_passes(
        self, participant: Participant, report: Callable[[], None], first_turn: int = 0
    ) -> Rounds:
        """As many rounds as the ratio needs to settle and the effort affords.

        `first_turn`: the first turn of seeds that the candidate has not met.
        """
        baselines = self._baselines
        usual = baselines.rounds.input_write_ms(baselines.anchor, "queued") if self.prelaunch else 0.0
        denied = frozenset(() if self.prelaunch else baselines.prelaunchable)
        rounds = Rounds(usual_input_write_ms=usual, denied_prelaunch=denied)
        count, limit = self.round_count(), self.round_count(self._max_passes())
        completed = 0
        while completed == 0 or (
            completed + count <= limit and not rounds.is_settled(baselines.anchor, "candidate")
        ):
            seeds = self.draw_seeds(count, first_turn + completed // count)
            self._run_pass(participant, rounds, seeds, report)
            completed += count
            if self._is_hopeless(rounds) or (self.prelaunch and self._has_head_start(rounds)):
                break
        if not self._has_enough(rounds):
            raise BadInput(
                "the GPU is throttling: too few rounds were undisturbed; let it cool and try again"
            )
        return rounds

    def _has_head_start(self, rounds: Rounds) -> bool:
        corrections = self._baselines.excess_protocol_ms(self.prelaunch)
        return self._has_enough(rounds) and clocks.has_head_start(
            rounds, "candidate", self._baselines.anchor, corrections
        )

    def slowed_baselines(self, rounds: Rounds) -> list[str]:
        """Baselines that were denied prelaunching or slowed by the candidate, where that changes the
        result."""
        if self._bench.target == "cpu":  # a CPU's speed depends on what else runs
            return []
        before = self._baselines.rounds
        return [
            name
            for name in self._timed_baselines()
            if name in rounds.denied_prelaunch or was_slowed(rounds, before, name, "candidate")
        ]

    def time_baselines_alone(self, names: list[str], rounds: Rounds) -> None:
        """Time baselines again after the candidate has ended: it may have left something running."""
        for name in names:
            rounds.solo[name] = [
                self._baselines.call(name, self._bench.inputs(seed), number % 2 == 0)
                for number, seed in enumerate(self._solo_seeds)
            ]

    def _has_enough(self, rounds: Rounds) -> bool:
        """Whether there are enough calls of each kind."""
        kinds: tuple[Kind, ...] = ("single", "queued") if self._baselines.uses_sealed_calls else ("single",)
        return rounds.kinds == kinds and all(
            len(rounds.calls("candidate", kind)) * 2 * len(kinds) >= _MIN_ROUNDS for kind in kinds
        )

    def _run_pass(
        self, participant: Participant, rounds: Rounds, seeds: list[int], report: Callable[[], None]
    ) -> None:
        # on the CPU everything in the sandbox is frozen while inputs are written; a GPU's kernels run on
        sealed = self._draw_sealed(len(seeds)) if self._baselines.uses_sealed_calls else set()
        for index, seed in enumerate(seeds):
            report()
            order = ["candidate", *self._timed_baselines()]
            random.shuffle(order)
            samples = {}
            for name in order:
                if name == "candidate":
                    samples[name] = self._call(participant, seed, index in sealed)
                else:
                    samples[name] = self._baselines.call(
                        name, self._bench.inputs(seed), index in sealed, self.prelaunch
                    )
            if self._is_throttled():
                rounds.discarded += 1
            else:
                rounds.add(samples)
            if self._is_hopeless(rounds):
                break

    def _draw_sealed(self, count: int) -> set[int]:
        """Half of the rounds, two of each four: however early the rounds end, there are some of both
        kinds."""
        return {
            first + index for first in range(0, count, 4) for index in self._bench.secret.sample(range(4), 2)
        }

    def _call(self, participant: Participant, seed: int, sealed: bool = False) -> Sample:
        seconds = self._bench.options.call_timeout
        participant.prepare_round(seconds)
        inputs, spec = self._bench.inputs(seed), self._bench.output_spec
        result = participant.call(inputs, spec, seconds, sealed, self.prelaunch)
        self._accuracy = self._accuracy.combine(self._check(result.outputs, seed, AS_GIVEN))
        return result.sample

    def _timed_baselines(self) -> list[str]:
        return self._baselines.variants if self._bench.options.effort == "full" else [self._baselines.anchor]

    def _max_passes(self) -> int:
        return _MAX_PASSES if self._bench.target == "cuda" and self._bench.options.effort == "full" else 1

    def _is_hopeless(self, rounds: Rounds) -> bool:
        """Whether the candidate is slower than the caller's limit. Being slow shortens a trial, and wins
        nothing."""
        limit = self._bench.options.give_up_ms
        enough = len(rounds.samples.get("candidate", [])) >= _MIN_ROUNDS
        return limit > 0 and enough and rounds.median_ms("candidate") > limit

    def _is_throttled(self) -> bool:
        return self._bench.target == "cuda" and bool((environment.sensors().throttle() or 0) & gpu.SLOWDOWN)
