"""A candidate timed beside the baselines: interleaved rounds, each output verified before the next inputs are shown."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from kernelpro.lab.judge.tolerance import Errors
from kernelpro.lab.measure import environment, timing
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.bursts import MOST_INPUTS
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.timing import Kind, Rounds, Sample
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import BadInput

_ROUNDS = {"quick": 15, "normal": 40, "full": 120}
_FEWEST_ROUNDS = 10
_ROUND_SECONDS = {"quick": 5.0, "normal": 15.0, "full": 60.0}
"""The number of rounds is fixed before a candidate is seen: so many, fewer where the baseline alone would take longer than this.
Only a candidate above `give_up_ms` is timed for fewer, and never for fewer than _FEWEST_ROUNDS; for more, see _MOST_PASSES."""
_MOST_PASSES = 4
"""On a GPU, at full effort: so many times the rounds, for as long as the ratio is not settled."""
_ALONE_ROUNDS = 20
_SHORT_BYTES = 4096

Check = Callable[[list[torch.Tensor], int, str], tuple[Errors, float]]
"""Outputs, seed and distribution -> their errors and the share of the limit; raises where they are wrong."""


def _more_than(count: int) -> int:
    """An eighth: which inputs come next cannot be known from which have come."""
    return count + max(4, count // 8)


class Race:
    """Of one task, for one candidate after another."""

    def __init__(self, bench: Bench, baselines: Baselines, check: Check):
        self._bench, self._baselines, self._check = bench, baselines, check
        self.seeds = [bench.new_seed() for _ in range(_more_than(_ROUNDS["full"] * 2))]
        self._later, self._alone = list[int](), [bench.new_seed() for _ in range(_ALONE_ROUNDS)]
        self._for_bursts = [bench.new_seed() for _ in range(MOST_INPUTS)]
        self._errors, self._excess = Errors(0.0, 0.0), 0.0
        self.ahead = False
        """Sealed calls of the candidate at hand, and of the baselines beside it, are launched before their inputs are there."""
        self.again = False
        """They were at first."""

    def draw(self, count: int, turn: int = 0) -> list[int]:
        """Seeds for so many rounds: drawn for every candidate anew, but from few, whose inputs and answers are still at hand.

        No two turns have one in common: what a candidate was asked before, it may remember. Where answers are so short that one
        candidate could leave them for the next (which pages are cached, how long something takes), nobody is asked the same twice.
        """
        if self._is_short:
            return [self._bench.new_seed() for _ in range(count)]
        some = _more_than(count)
        self._later += [
            self._bench.new_seed() for _ in range((turn + 1) * some - len(self.seeds) - len(self._later))
        ]
        return self._bench.secret.sample((self.seeds + self._later)[turn * some : (turn + 1) * some], count)

    def for_bursts(self) -> list[int]:
        return self._anew(self._for_bursts)

    def for_calls_alone(self) -> list[int]:
        return self._anew(self._alone)

    def _anew(self, seeds: list[int]) -> list[int]:
        return [self._bench.new_seed() for _ in seeds] if self._is_short else seeds

    @property
    def _is_short(self) -> bool:
        return self._bench.expected.nbytes <= _SHORT_BYTES

    def count(self, passes: int = 1) -> int:
        """From the baselines alone, so that no candidate can shorten its own trial."""
        effort = self._bench.options.effort
        slowest = max(self._baselines.warm_ms.values())
        wanted = passes * _ROUNDS[effort] * (2 if slowest < 0.2 else 1)
        affordable = int(_ROUND_SECONDS[effort] / (4e-3 * slowest))
        return max(_FEWEST_ROUNDS, min(wanted, affordable))

    def run(
        self, participant: Participant, errors: Errors, excess: float, alive: Callable[[], None]
    ) -> tuple[Rounds, Errors, float]:
        """The rounds, and the worst of the errors so far and in them; each round is a sign of life."""
        self._errors, self._excess = errors, excess
        self.ahead = participant.ahead and self._baselines.anchor in self._baselines.ahead
        rounds = self._rounds(participant, alive)
        self.again = self.ahead and self._has_head_start(rounds)
        if self.again:
            self.ahead = False
            rounds = self._rounds(participant, alive, self._passes())
        if self.slowed(rounds):
            seeds = self.for_calls_alone()
            rounds.alone["candidate"] = [
                self._call(participant, seed, number % 2 == 0) for number, seed in enumerate(seeds)
            ]
        return rounds, self._errors, self._excess

    def _rounds(self, participant: Participant, alive: Callable[[], None], first: int = 0) -> Rounds:
        """As many as the ratio needs to settle, and can be afforded; `first`: the first turn whose seeds were not met before."""
        usual = self._baselines.rounds.filling(self._baselines.anchor, "queued") if self.ahead else 0.0
        rounds = Rounds(usual_filling=usual, held_back=frozenset(() if self.ahead else self._baselines.ahead))
        count, most = self.count(), self.count(self._passes())
        made = 0
        while made == 0 or (made + count <= most and not rounds.settled(self._baselines.anchor, "candidate")):
            self._pass(participant, rounds, self.draw(count, first + made // count), alive)
            made += count
            if self._is_hopeless(rounds) or (self.ahead and self._has_head_start(rounds)):
                break
        if not self._are_enough(rounds):
            raise BadInput(
                "the GPU is throttling: too few rounds were undisturbed; let it cool and try again"
            )
        return rounds

    def _has_head_start(self, rounds: Rounds) -> bool:
        corrections = self._baselines.excess_protocol_ms(self.ahead)
        return self._are_enough(rounds) and timing.has_head_start(
            rounds, "candidate", self._baselines.anchor, corrections
        )

    def slowed(self, rounds: Rounds) -> list[str]:
        """Baselines that were held back, or took longer beside the candidate than before it came, where that makes a difference."""
        if self._bench.target == "cpu":  # its speed depends on who else is at work meanwhile
            return []
        before = self._baselines.rounds
        return [
            n
            for n in self._beside()
            if n in rounds.held_back or timing.was_slowed(rounds, before, n, "candidate")
        ]

    def time_alone(self, names: list[str], rounds: Rounds) -> None:
        """Baselines again, when the candidate is gone: it may have left something running."""
        for name in names:
            rounds.alone[name] = [
                self._baselines.call(name, self._bench.inputs(seed), number % 2 == 0)
                for number, seed in enumerate(self._alone)
            ]

    def _are_enough(self, rounds: Rounds) -> bool:
        """Of each kind of call."""
        kinds: tuple[Kind, ...] = ("single", "queued") if self._baselines.seals else ("single",)
        return rounds.kinds == kinds and all(
            len(rounds.of("candidate", kind)) * 2 * len(kinds) >= _FEWEST_ROUNDS for kind in kinds
        )

    def _pass(
        self, participant: Participant, rounds: Rounds, seeds: list[int], alive: Callable[[], None]
    ) -> None:
        count = len(seeds)
        # On the CPU everything in the cell is frozen while inputs are written; a GPU's kernels run on.
        sealed = self._some_sealed(count) if self._baselines.seals else set()
        for index, seed in enumerate(seeds):
            alive()
            order = ["candidate", *self._beside()]
            random.shuffle(order)
            samples = {}
            for name in order:
                if name == "candidate":
                    samples[name] = self._call(participant, seed, index in sealed)
                else:
                    samples[name] = self._baselines.call(
                        name, self._bench.inputs(seed), index in sealed, self.ahead
                    )
            if self._throttled():
                rounds.discarded += 1
            else:
                rounds.add(samples)
            if self._is_hopeless(rounds):
                break

    def _some_sealed(self, count: int) -> set[int]:
        """Half of the rounds, two of each four: however early they end, there are some of both kinds."""
        return {
            first + index for first in range(0, count, 4) for index in self._bench.secret.sample(range(4), 2)
        }

    def _call(self, participant: Participant, seed: int, sealed: bool = False) -> Sample:
        seconds = self._bench.options.call_timeout
        participant.prepare_round(seconds)
        answer = participant.call(self._bench.inputs(seed), self._bench.expected, seconds, sealed, self.ahead)
        found, share = self._check(answer.outputs, seed, AS_GIVEN)
        self._errors, self._excess = self._errors.worst(found), max(self._excess, share)
        return answer.sample

    def _beside(self) -> list[str]:
        return self._baselines.variants if self._bench.options.effort == "full" else [self._baselines.anchor]

    def _passes(self) -> int:
        return _MOST_PASSES if self._bench.target == "cuda" and self._bench.options.effort == "full" else 1

    def _is_hopeless(self, rounds: Rounds) -> bool:
        """Slower than anybody wants to know exactly. Being slow shortens a trial, and wins nothing."""
        limit = self._bench.options.give_up_ms
        enough = len(rounds.samples.get("candidate", [])) >= _FEWEST_ROUNDS
        return limit > 0 and enough and float(rounds.own("candidate").median()) > limit

    def _throttled(self) -> bool:
        return self._bench.target == "cuda" and bool((environment.sensors().throttle() or 0) & gpu.SLOWDOWN)
