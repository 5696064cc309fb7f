"""Two kernels at the same rate of calls, with idle time (benchmarks/energy_spaced.py).

The sandboxes are real; the energy counter counts their CPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from lab.energy.fake_counter import ASLEEP, BUSY, TASK, CpuTimeCounter, kernel, quick_windows

from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.launcher import SandboxLauncher

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import energy_spaced
from energy import EnergyBench


@pytest.mark.long  # test_meter.py measures the same kernels; only the benchmark spaces their calls
def test_at_the_same_rate_a_sleeping_kernel_takes_less_energy(
    launcher: SandboxLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_windows(monkeypatch)
    for name, value in {"_ROUNDS": 3, "_WARM": 0.1, "_WINDOW": 0.6}.items():
        monkeypatch.setattr(energy_spaced, name, value)
    builds = Builds(launcher)
    benches = [
        EnergyBench(TASK, "cpu", launcher, builds) for _ in range(2)
    ]  # each holds one candidate on a CPU
    participants = [
        bench.start(kernel(rest).source) for bench, rest in zip(benches, (ASLEEP, BUSY), strict=True)
    ]
    try:
        names = ("candidate", "lean")
        sides = [
            bench.make_side(name, participant, torch.tensor([6.0]))
            for bench, name, participant in zip(benches, names, participants, strict=True)
        ]
        result = energy_spaced.compare_spaced(CpuTimeCounter(), benches[0], *sides)
    finally:
        for bench, participant in zip(benches, participants, strict=True):
            participant.close()
            bench.bench.close()
        builds.close()
    assert result["ratio"]["high"] < 0.9, result
    for sides_of_round in result["rounds"]:
        assert sides_of_round["candidate"]["rate"] == pytest.approx(sides_of_round["lean"]["rate"], rel=0.5)
        assert sides_of_round["lean"]["rate"] < 0.9 / 0.006, "there is idle time between stretches"
