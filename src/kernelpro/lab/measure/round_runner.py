"""Times a candidate beside the baselines, in interleaved rounds. Each output is verified before the next
inputs become visible.

Between rounds there are further calls on other distributions, at secret places. A candidate cannot tell them
from timed calls: once it stops handling such inputs, for example after the calls that precede timing, it is
wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kernelpro.lab.measure import clocks, environment
from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.measure.cuda_participant import BUFFER_SETS, CudaParticipant
from kernelpro.lab.measure.errors import Errors
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.measure.rounds import Rounds, was_slowed
from kernelpro.lab.measure.samples import Kind, Sample
from kernelpro.lab.measure.turns import Turns
from kernelpro.lab.sandbox import gpu
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.tasks.inputs import AS_GIVEN
from kernelpro.records import BadInput

_ROUNDS = {"quick": 15, "normal": 40, "full": 120}
_MIN_ROUNDS = 10
_ROUND_SECONDS = {"quick": 5.0, "normal": 15.0, "full": 60.0}
"""There are fewer rounds if they would take longer than this, at four calls of the slowest baseline a round.
The number of rounds is fixed before the candidate is seen. Only a candidate above `give_up_ratio` gets fewer,
but at least _MIN_ROUNDS; for more rounds, see _MAX_PASSES."""
_MAX_PASSES = 4
"""At full effort on a GPU, the rounds are repeated up to this many times, until the ratio is settled."""
_SOLO_CALLS = 20
_SHORT_ANSWER_BYTES = 4096
_MAX_BURST_MS = 2.0
"""Longer calls need no bursts: a microsecond or two is less than 0.1 % of them."""
_CYCLE: tuple[Kind, ...] = ("single", "single", "queued", "queued", "burst")
"""The kinds of rounds, in random order in each cycle, so that all kinds occur even if rounds end early."""


@dataclass(frozen=True)
class Accuracy:
    """The worst errors of several outputs, and the worst share of the limit; above 1, an output is wrong."""

    errors: Errors = field(default_factory=lambda: Errors(0.0, 0.0))
    limit_share: float = 0.0

    def combine(self, other: Accuracy) -> Accuracy:
        """The worse of both, in each measure."""
        return Accuracy(self.errors.combine(other.errors), max(self.limit_share, other.limit_share))


Check = Callable[[list[torch.Tensor], int, str], Accuracy]
"""The accuracy of the outputs for the inputs of a seed and distribution; raises if they are wrong."""


def _with_spare(count: int) -> int:
    """The size of a seed pool for `count` rounds: an eighth larger, so that the inputs that remain cannot be
    inferred from those already used."""
    return count + max(4, count // 8)


def is_short(device: str, own_ms: float) -> bool:
    """Whether calls are so short that bursts are needed to resolve them."""
    return device == "cuda" and own_ms < _MAX_BURST_MS


def _is_long(rounds: Rounds) -> bool:
    """Whether the candidate's calls are so long that bursts add no information."""
    samples = rounds.samples.get("candidate", [])
    return bool(samples) and min(sample.own_ms for sample in samples) > _MAX_BURST_MS


class _NoBursts(Exception):
    """This candidate cannot be timed in bursts; the message says why."""


class RoundRunner:
    """Runs the rounds of one task, for one candidate after another."""

    def __init__(
        self,
        bench: Bench,
        baselines: Baselines,
        check: Check,
        unusual: Sequence[Sequence[tuple[int, str]]] = (),
    ):
        """`unusual`: seeds and distributions to verify between the rounds, for equal parts of a pass."""
        self._bench, self._baselines, self._check, self._unusual = bench, baselines, check, unusual
        self.unusual_calls = 0
        """Calls of the current candidate on other distributions between the rounds."""
        self.seeds = [bench.new_seed() for _ in range(_with_spare(_ROUNDS["full"] * 2))]
        self._extra_seeds, self._solo_seeds = list[int](), [bench.new_seed() for _ in range(_SOLO_CALLS)]
        self._accuracy = Accuracy()
        self.prelaunch = False
        """Whether sealed calls of the current candidate, and of the baselines beside it, are prelaunched."""
        self.retried_without_prelaunch = False
        """Whether prelaunched calls seemed to show a head start, so that timing was repeated without."""
        self.burst_skip_reason = ""
        """Why there are no bursts; empty if there are."""

    def draw_seeds(self, count: int, turn: int = 0) -> list[int]:
        """Seeds for `count` rounds, resampled for each candidate from a small pool whose inputs and truths
        are cached.

        No two turns share a seed, because a candidate may remember earlier inputs and outputs. If outputs are
        so short that one candidate could leak them to the next (through cached pages or timing), no seed is
        used twice.
        """
        if self._is_short:
            return [self._bench.new_seed() for _ in range(count)]
        size = _with_spare(count)
        missing = (turn + 1) * size - len(self.seeds) - len(self._extra_seeds)
        self._extra_seeds += [self._bench.new_seed() for _ in range(missing)]
        pool = (self.seeds + self._extra_seeds)[turn * size : (turn + 1) * size]
        return self._bench.secret.sample(pool, count)

    def solo_seeds(self) -> list[int]:
        """Seeds for a candidate's solo calls, which have no baseline calls in between."""
        return self._fresh_if_short(self._solo_seeds)

    def _fresh_if_short(self, seeds: list[int]) -> list[int]:
        return [self._bench.new_seed() for _ in seeds] if self._is_short else seeds

    @property
    def _is_short(self) -> bool:
        return self._bench.output_spec.nbytes <= _SHORT_ANSWER_BYTES

    def round_count(self, passes: int = 1) -> int:
        """How many rounds to run. It depends only on the baselines, so that no candidate can shorten its own
        timing."""
        effort = self._bench.options.effort
        slowest = max(self._baselines.warm_ms.values())
        planned = passes * _ROUNDS[effort] * (2 if slowest < 0.2 else 1)
        affordable = int(_ROUND_SECONDS[effort] / (4e-3 * slowest))
        return max(_MIN_ROUNDS, min(planned, affordable))

    def run(
        self, participant: Participant, accuracy: Accuracy, report: Callable[[], None]
    ) -> tuple[Rounds, Accuracy]:
        """Run the rounds. Returns them and the worst accuracy, including the `accuracy` so far.

        Calls `report` before each round.
        """
        self._accuracy, self.burst_skip_reason, self.unusual_calls = accuracy, "", 0
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
        """As many rounds as the ratio needs to settle, within the limit of the effort.

        `first_turn`: the first turn of seeds that the candidate has not seen.
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
            kinds = self._draw_kinds(count, participant)
            needed = sum(self._burst_calls(participant) if kind == "burst" else 1 for kind in kinds)
            seeds = self.draw_seeds(needed, first_turn + completed // count)
            self._run_pass(participant, rounds, kinds, seeds, report)
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
        """Baselines that were slower beside the candidate, so that the result changes: they were not
        prelaunched because the candidate cannot be, or the candidate slowed them."""
        if self._bench.target == "cpu":  # a CPU's speed depends on what else runs
            return []
        before = self._baselines.rounds
        return [
            name
            for name in self._timed_baselines()
            if name in rounds.denied_prelaunch or was_slowed(rounds, before, name, "candidate")
        ]

    def time_baselines_alone(self, names: list[str], rounds: Rounds) -> None:
        """Time baselines again after the candidate has ended, because it may have left work running."""
        with self._bench.quiet():
            for name in names:
                rounds.solo[name] = [
                    self._baselines.call(name, self._bench.inputs(seed), number % 2 == 0)
                    for number, seed in enumerate(self._solo_seeds)
                ]

    def _has_enough(self, rounds: Rounds) -> bool:
        """Whether there are enough calls of each kind."""
        kinds: tuple[Kind, ...] = ("single", "queued") if self._baselines.uses_sealed_calls else ("single",)
        return set(kinds) <= set(rounds.kinds) and all(
            len(rounds.calls("candidate", kind)) * 2 * len(kinds) >= _MIN_ROUNDS for kind in kinds
        )

    def _run_pass(
        self,
        participant: Participant,
        rounds: Rounds,
        kinds: list[Kind],
        seeds: list[int],
        report: Callable[[], None],
    ) -> None:
        remaining, unusual = iter(seeds), self._place_unusual(len(kinds))
        for number, planned in enumerate(kinds):
            report()
            for seed, distribution in unusual[number]:
                self._call(participant, seed, planned != "single", distribution)
                self.unusual_calls += 1
            bursts = planned == "burst" and not _is_long(rounds)
            calls = self._burst_calls(participant) if bursts else 1
            kind: Kind = "queued" if planned == "burst" and calls == 1 else planned
            try:
                samples = self._run_round(participant, kind, [next(remaining) for _ in range(calls)])
            except _NoBursts as reason:
                self.burst_skip_reason = str(reason)
                rounds.drop("burst")
                samples = self._run_round(participant, "queued", [self._bench.new_seed()])
            if self._is_throttled():
                rounds.discarded += 1
            else:
                rounds.add(samples)
            if self._is_hopeless(rounds):
                break

    def _place_unusual(self, rounds: int) -> list[list[tuple[int, str]]]:
        """For each round of a pass, what is verified before it: each part of the unusual inputs at random
        places in its part of the pass."""
        places: list[list[tuple[int, str]]] = [[] for _ in range(rounds)]
        parts = len(self._unusual)
        for part, inputs in enumerate(self._unusual):
            first, end = part * rounds // parts, (part + 1) * rounds // parts
            for one in inputs:
                place = places[self._bench.secret.randrange(first, end)]
                place.insert(self._bench.secret.randrange(len(place) + 1), one)
        return places

    def _run_round(self, participant: Participant, kind: Kind, seeds: list[int]) -> dict[str, Sample]:
        order = ["candidate", *self._timed_baselines()]
        random.shuffle(order)
        samples = {}
        for name in order:
            if kind == "burst":
                samples[name] = self._burst(participant, name, seeds)
            elif name == "candidate":
                samples[name] = self._call(participant, seeds[0], kind == "queued")
            else:
                samples[name] = self._baselines.call(
                    name, self._bench.inputs(seeds[0]), kind == "queued", self.prelaunch
                )
        return samples

    def _draw_kinds(self, count: int, participant: Participant) -> list[Kind]:
        """The kinds of `count` rounds. On the CPU all calls are single, because the whole sandbox is frozen
        while inputs are written. A GPU's kernels keep running, so some calls are sealed."""
        if not self._baselines.uses_sealed_calls:
            return ["single"] * count
        bursts = self._burst_calls(participant) > 1
        cycle = [kind for kind in _CYCLE if bursts or kind != "burst"]
        drawn: list[Kind] = []
        while len(drawn) < count:
            drawn += self._bench.secret.sample(cycle, len(cycle))
        return drawn[:count]

    def _burst_calls(self, participant: Participant) -> int:
        """Calls of a burst, at most one for each buffer set of either side; 1 if there are no bursts."""
        if not is_short(self._bench.target, min(self._baselines.warm_ms.values())) or self.burst_skip_reason:
            return 1
        buffers = participant.buffer_sets, self._baselines.participant.buffer_sets
        return max(1, min(BUFFER_SETS, *buffers, self._bench.max_burst_calls))

    def _burst(self, participant: Participant, name: str, seeds: list[int]) -> Sample:
        """A burst of the candidate, whose outputs are verified, or of a baseline."""
        seconds, spec = self._bench.options.call_timeout, self._bench.output_spec
        assert isinstance(participant, CudaParticipant)
        out_of_memory = False
        try:
            batch = [self._bench.inputs(seed) for seed in seeds]
            if name != "candidate":
                sample = self._baselines.burst(name, batch, self.prelaunch)
            else:
                participant.prepare_round(seconds)
                result = participant.burst(batch, spec, seconds, self.prelaunch)
                if not result.distinct:
                    raise _NoBursts("the kernel's outputs share memory")
                sample = result.sample
                for seed, outputs in zip(seeds, result.outputs, strict=True):
                    self._accuracy = self._accuracy.combine(self._check(outputs, seed, AS_GIVEN))
        except (CandidateRejected, BadInput, torch.OutOfMemoryError) as error:
            # raised for the candidate, a baseline, or the judge, which holds inputs, outputs and truths of a
            # burst
            if "out of memory" not in str(error).lower() and not isinstance(error, torch.OutOfMemoryError):
                raise
            out_of_memory = True
        if out_of_memory:  # outside the handler, because its frames hold memory
            self._release_memory(participant)
            raise _NoBursts("the device has too little memory")
        if self.prelaunch and not sample.proven:
            raise _NoBursts(f"a burst of {name} has too many launches to be launched ahead")
        return sample

    def _release_memory(self, participant: Participant) -> None:
        """Free the memory of a burst's outputs, which the allocators of candidate and baselines keep."""
        turns = Turns(True, self._bench.options.call_timeout)
        turns.take(participant)
        turns.take(None)
        self._baselines.release_memory()
        torch.cuda.empty_cache()

    def _call(
        self, participant: Participant, seed: int, sealed: bool = False, distribution: str = AS_GIVEN
    ) -> Sample:
        seconds = self._bench.options.call_timeout
        participant.prepare_round(seconds)
        inputs, spec = self._bench.oracle.inputs(seed, distribution)[1], self._bench.output_spec
        result = participant.call(inputs, spec, seconds, sealed, self.prelaunch)
        self._accuracy = self._accuracy.combine(self._check(result.outputs, seed, distribution))
        return result.sample

    def _timed_baselines(self) -> list[str]:
        return self._baselines.variants if self._bench.options.effort == "full" else [self._baselines.anchor]

    def _max_passes(self) -> int:
        return _MAX_PASSES if self._bench.target == "cuda" and self._bench.options.effort == "full" else 1

    def _is_hopeless(self, rounds: Rounds) -> bool:
        """Whether the candidate is slower than the caller's limit. A candidate gains nothing from shortening
        its timing by being slow."""
        limit = self._bench.options.give_up_ratio
        if limit <= 0 or len(rounds.samples.get("candidate", [])) < _MIN_ROUNDS:
            return False
        return rounds.median_ms("candidate") > limit * rounds.median_ms(self._baselines.anchor)

    def _is_throttled(self) -> bool:
        return self._bench.target == "cuda" and bool((environment.sensors().throttle() or 0) & gpu.SLOWDOWN)
