"""What the baselines' calibration says, on made-up samples with known answers."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kernelpro.lab.measure.baselines import Baselines
from kernelpro.lab.measure.rounds import Rounds
from kernelpro.lab.measure.samples import Kind, Sample


def calibrated(excess_ms: float, noise_ms: float, seed: int, ahead: bool = False) -> Baselines:
    """Of torch.compile, the anchor, whose protocol takes `excess_ms` more than that of the eager reference."""
    participant: Any = SimpleNamespace(device="cuda")
    made = Baselines(participant, ["eager", "compile"], None, None, 1.0, 1.0, anchor="compile")  # type: ignore[arg-type]
    dice, made.rounds = random.Random(seed), Rounds()
    made.prelaunchable = {"eager", "compile"} if ahead else set()
    for index in range(40):
        sealed = index % 2 == 0
        filling = dice.uniform(0.1, 2.0) if sealed and ahead else 0.0
        protocol = {"eager": 0.5, "compile": 0.5 + excess_ms * (3 if sealed and ahead else 1)}
        late = {name: ms + filling + noise_ms * dice.expovariate(1) for name, ms in protocol.items()}
        made.rounds.add(
            {name: Sample(0.1, 0.1 + ms, sealed, input_write_ms=filling) for name, ms in late.items()}
        )
    return made


@pytest.mark.parametrize("seed", range(20))
def test_what_differs_by_chance_while_the_cpu_is_busy_is_not_held_against_candidates(seed: int) -> None:
    assert calibrated(0.0, 0.5, seed).excess_protocol_ms(prelaunched=False) == {"single": 0.0, "queued": 0.0}


@pytest.mark.parametrize("ahead", [True, False])
def test_a_candidate_may_not_hide_in_what_the_anchors_protocol_surely_costs(ahead: bool) -> None:
    found = calibrated(0.1, 0.01, 1, ahead=True).excess_protocol_ms(ahead)
    expected: dict[Kind, float] = {"single": 0.1, "queued": 0.3 if ahead else 0.1}
    assert found == pytest.approx(expected, abs=0.02)
