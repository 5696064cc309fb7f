"""Two kernels at the same rate of calls, with rests (benchmarks/energy_spaced.py): real cells, and a counter of what they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from lab.energy.fake_counter import ASLEEP, BUSY, TASK, CpuTimeCounter, kernel, quick_windows

from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.launcher import SandboxLauncher

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import energy_spaced
from energy import Table


def test_at_the_same_rate_the_one_that_sleeps_takes_less(
    launcher: SandboxLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_windows(monkeypatch)
    for name, value in {"_ROUNDS": 3, "_WARM": 0.1, "_WINDOW": 0.6}.items():
        monkeypatch.setattr(energy_spaced, name, value)
    builds = Builds(launcher)
    tables = [
        Table(TASK, "cpu", launcher, builds) for _ in range(2)
    ]  # on a CPU one has the memory for one candidate
    seated = [table.seat(kernel(rest).source) for table, rest in zip(tables, (ASLEEP, BUSY), strict=True)]
    try:
        names = ("candidate", "lean")
        sides = [tables[at].side(name, seated[at], torch.tensor([6.0])) for at, name in enumerate(names)]
        found = energy_spaced.compared(CpuTimeCounter(), tables[0], *sides)
    finally:
        for table, participant in zip(tables, seated, strict=True):
            participant.close()
            table.bench.close()
        builds.close()
    assert found["ratio"]["high"] < 0.9, found
    for made in found["rounds"]:
        assert made["candidate"]["rate"] == pytest.approx(made["lean"]["rate"], rel=0.5)
        assert made["lean"]["rate"] < 0.9 / 0.006, "it rests in between"
