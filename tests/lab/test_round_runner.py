"""Which inputs a candidate meets."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelpro.lab.measure import round_runner
from kernelpro.lab.measure.round_runner import Accuracy, RoundRunner
from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.measure.samples import BurstResult, Sample
from kernelpro.lab.sandbox.outputs import CandidateRejected, OutputSpec
from kernelpro.records import Status


@pytest.mark.parametrize(("shape", "anew"), [((), True), ((1024,), True), ((1025,), False)])
def test_where_answers_are_short_no_two_candidates_are_asked_the_same(
    shape: tuple[int, ...], anew: bool
) -> None:
    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        max_burst_calls=8,
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        output_spec=OutputSpec(((shape, torch.float32),)),
        target="cpu",
    )
    race = RoundRunner(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    first, second = race.draw_seeds(30), race.draw_seeds(30)
    assert len(set(first)) == len(set(second)) == 30
    assert set(first).isdisjoint(second) == anew
    assert set(race.solo_seeds()).isdisjoint(race.solo_seeds()) == anew


@pytest.mark.parametrize(("warm_ms", "kinds"), [(0.2, 5), (5.0, 4)])
def test_however_early_rounds_end_there_are_some_of_all_kinds(warm_ms: float, kinds: int) -> None:
    bench: Any = SimpleNamespace(
        max_burst_calls=8,
        new_seed=lambda: 1,
        secret=random.Random(1),
        output_spec=OutputSpec((((4,), torch.float32),)),
        target="cuda",
    )
    side: Any = SimpleNamespace(buffer_sets=8)
    baselines: Any = SimpleNamespace(uses_sealed_calls=True, warm_ms={"eager": warm_ms}, participant=side)
    race = RoundRunner(bench, baselines, lambda outputs, seed, name: None)  # type: ignore[arg-type,return-value]
    for count in (10, 15, 40, 121):
        drawn = race._draw_kinds(count, side)
        assert len(drawn) == count
        for made in range(kinds, count + 1, kinds):
            found = Counter(drawn[:made])
            assert found["single"] == found["queued"] == 2 * made // kinds
            assert found["burst"] == (made // kinds if kinds == 5 else 0)


def test_unusual_inputs_are_verified_at_secret_places_in_both_halves() -> None:
    bench: Any = SimpleNamespace(new_seed=lambda: 1, secret=random.Random(1))
    halves = [[(1, "spikes"), (2, "x3")], [(3, "spikes")]]
    race = RoundRunner(bench, SimpleNamespace(), lambda outputs, seed, name: None, halves)  # type: ignore[arg-type,return-value]
    drawn = [race._place_unusual(15) for _ in range(50)]
    for places in drawn:
        first, second = (list(itertools.chain(*half)) for half in (places[:7], places[7:]))
        assert sorted(first) == halves[0] and second == halves[1]
    assert {number for places in drawn for number, inputs in enumerate(places) if inputs} == set(range(15))


class Lending:
    """A participant whose bursts end as they are told to."""

    buffer_sets = 8

    def __init__(self, error: Exception | None = None, distinct: bool = True, proven: bool = True):
        self.error, self.distinct, self.proven, self.asked = error, distinct, proven, 0
        self.released, self.process = 0, SimpleNamespace(has_ended=lambda: False)

    def release_memory(self, seconds: float) -> None:
        self.released += 1

    def prepare_round(self, seconds: float, **settings: Any) -> None:
        pass

    def burst(self, batch: list[Any], spec: OutputSpec, seconds: float, prelaunch: bool) -> BurstResult:
        self.asked += 1
        if self.error:
            raise self.error
        sample = Sample(0.1, 1.0, sealed=True, calls=len(batch), proven=self.proven)
        return BurstResult([[] for _ in batch], sample, self.distinct)


@pytest.mark.parametrize(
    ("child", "reason"),
    [
        (Lending(), ""),
        (Lending(torch.OutOfMemoryError("of the judge")), "the device has too little memory"),
        (
            Lending(CandidateRejected(Status.CRASHED, "CUDA out of memory")),
            "the device has too little memory",
        ),
        (Lending(distinct=False), "the kernel's outputs share memory"),
        (Lending(proven=False), "a burst of candidate has too many launches to be launched ahead"),
    ],
)
def test_why_a_candidate_has_no_bursts(child: Lending, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_runner, "CudaParticipant", Lending)
    bench: Any = SimpleNamespace(
        max_burst_calls=8,
        new_seed=lambda: 1,
        secret=random.Random(1),
        output_spec=OutputSpec((((4096,), torch.float32),)),
        target="cuda",
        inputs=lambda seed: [],
        options=SimpleNamespace(effort="quick", give_up_ratio=0.0, call_timeout=1.0),
    )
    base = Sample(0.2, 2.0, sealed=True, calls=8, proven=True)
    baselines: Any = SimpleNamespace(
        uses_sealed_calls=True, warm_ms={"eager": 0.2}, participant=Lending(), anchor="eager"
    )
    baselines.burst = lambda name, batch, prelaunch: base
    baselines.release_memory = lambda: baselines.participant.release_memory(1.0)
    baselines.call = lambda name, inputs, sealed, prelaunch: Sample(0.2, 0.4, sealed, proven=True)
    race = RoundRunner(bench, baselines, lambda outputs, seed, name: Accuracy())
    race.prelaunch, race._is_throttled = True, lambda: False  # type: ignore[method-assign]
    race._call = lambda participant, seed, sealed=False, distribution="": Sample(  # type: ignore[method-assign]
        0.1, 0.3, sealed, proven=True
    )
    rounds = Rounds()
    race._run_pass(child, rounds, ["burst"] * 3, list(range(24)), lambda: None)  # type: ignore[arg-type]
    assert race.burst_skip_reason == reason and child.asked == (1 if reason else 3)
    kinds = Counter(sample.kind for sample in rounds.samples["candidate"])
    assert kinds == ({"queued": 3} if reason else {"burst": 3}), "other calls take their place"
    assert child.released == baselines.participant.released == ("memory" in reason and bool(child.error))


def test_a_candidate_of_long_calls_has_no_bursts() -> None:
    fast, slow = (Rounds({"candidate": [Sample(ms, 9.0, sealed=False)]}) for ms in (0.5, 5.0))
    assert round_runner._is_long(slow) and not round_runner._is_long(fast)
    assert not round_runner._is_long(Rounds())


@pytest.mark.parametrize(("filling", "ahead"), [(0.1, True), (2.1, False)])
def test_who_seems_to_have_a_head_start_is_timed_again_without_being_launched_ahead(
    filling: float, ahead: bool
) -> None:
    asked: list[tuple[bool, set[int]]] = []

    class Told(RoundRunner):
        def _run_pass(
            self, participant: Any, rounds: Rounds, kinds: Any, seeds: list[int], report: Any
        ) -> None:
            asked.append((self.prelaunch, set(seeds)))
            for index in range(len(seeds)):
                sealed, gated = index % 2 == 0, self.prelaunch and index % 2 == 0
                took = {"candidate": filling if gated else 0.0, "compile": 0.1 if gated else 0.0}
                rounds.add(
                    {name: Sample(1.0, 1.5 + ms, sealed, input_write_ms=ms) for name, ms in took.items()}
                )

    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        max_burst_calls=8,
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        output_spec=OutputSpec((((4096,), torch.float32),)),
        target="cuda",
    )
    bench.options = SimpleNamespace(effort="normal", give_up_ratio=0.0)
    before = Rounds(
        {"compile": [Sample(1.0, 1.6, index % 2 == 0, input_write_ms=0.1) for index in range(20)]}
    )
    baselines: Any = SimpleNamespace(
        anchor="compile",
        prelaunchable={"compile"},
        warm_ms={"compile": 1.0},
        uses_sealed_calls=True,
        rounds=before,
    )
    baselines.excess_protocol_ms = lambda prelaunched: {}
    race = Told(bench, baselines, lambda outputs, seed, name: Accuracy())
    race._call = lambda participant, seed, sealed=False, distribution="": Sample(1.0, 1.5, sealed)  # type: ignore[method-assign]
    participant: Any = SimpleNamespace(can_prelaunch=True, buffer_sets=1)
    baselines.participant = participant
    rounds, _ = race.run(participant, Accuracy(), lambda: None)
    assert race.prelaunch == ahead and [told for told, _ in asked] == [True, False][: 1 if ahead else 2]
    assert bool(rounds.denied_prelaunch) != ahead and ("compile" in race.slowed_baselines(rounds)) != ahead
    assert not asked[0][1] & asked[-1][1] or ahead
