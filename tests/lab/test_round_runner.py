"""Which inputs a candidate meets."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelpro.lab.measure.round_runner import Accuracy, RoundRunner
from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.measure.samples import Sample
from kernelpro.lab.sandbox.outputs import OutputSpec


@pytest.mark.parametrize(("shape", "anew"), [((), True), ((1024,), True), ((1025,), False)])
def test_where_answers_are_short_no_two_candidates_are_asked_the_same(
    shape: tuple[int, ...], anew: bool
) -> None:
    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        output_spec=OutputSpec(((shape, torch.float32),)),
        target="cpu",
    )
    race = RoundRunner(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    first, second = race.draw_seeds(30), race.draw_seeds(30)
    assert len(set(first)) == len(set(second)) == 30
    assert set(first).isdisjoint(second) == anew
    assert set(race.burst_seeds()).isdisjoint(race.burst_seeds()) == anew
    assert set(race.solo_seeds()).isdisjoint(race.solo_seeds()) == anew


def test_however_early_rounds_end_there_are_some_of_both_kinds() -> None:
    bench: Any = SimpleNamespace(
        new_seed=lambda: 1,
        secret=random.Random(1),
        output_spec=OutputSpec((((4,), torch.float32),)),
        target="cuda",
    )
    race = RoundRunner(bench, SimpleNamespace(), lambda outputs, seed, name: None)  # type: ignore[arg-type]
    for count in (10, 15, 40, 121):
        sealed = race._draw_sealed(count)
        for made in range(4, count + 1, 4):
            assert len(sealed & set(range(made))) == made // 2


@pytest.mark.parametrize(("filling", "ahead"), [(0.1, True), (2.1, False)])
def test_who_seems_to_have_a_head_start_is_timed_again_without_being_launched_ahead(
    filling: float, ahead: bool
) -> None:
    asked: list[tuple[bool, set[int]]] = []

    class Told(RoundRunner):
        def _run_pass(self, participant: Any, rounds: Rounds, seeds: list[int], report: Any) -> None:
            asked.append((self.prelaunch, set(seeds)))
            for index in range(len(seeds)):
                sealed, gated = index % 2 == 0, self.prelaunch and index % 2 == 0
                took = {"candidate": filling if gated else 0.0, "compile": 0.1 if gated else 0.0}
                rounds.add(
                    {name: Sample(1.0, 1.5 + ms, sealed, input_write_ms=ms) for name, ms in took.items()}
                )

    dice = random.Random(1)
    bench: Any = SimpleNamespace(
        new_seed=lambda: dice.getrandbits(48),
        secret=dice,
        output_spec=OutputSpec((((4096,), torch.float32),)),
        target="cuda",
    )
    bench.options = SimpleNamespace(effort="normal", give_up_ms=0.0)
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
    race._call = lambda participant, seed, sealed=False: Sample(1.0, 1.5, sealed)  # type: ignore[method-assign]
    participant: Any = SimpleNamespace(can_prelaunch=True)
    rounds, _ = race.run(participant, Accuracy(), lambda: None)
    assert race.prelaunch == ahead and [told for told, _ in asked] == [True, False][: 1 if ahead else 2]
    assert bool(rounds.denied_prelaunch) != ahead and ("compile" in race.slowed_baselines(rounds)) != ahead
    assert not asked[0][1] & asked[-1][1] or ahead
