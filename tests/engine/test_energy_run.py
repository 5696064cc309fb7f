"""Whole runs with an energy objective: their jobs, the ranking of the tree, and the winner.

The pool is fake, so that energies are exact. tests/lab/energy tests the measurement.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from engine.known_lab import KnownLab
from engine.verdicts import verdict

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.engine.loop import Engine
from kernelpro.engine.store import RunStore
from kernelpro.lab.energy.counter import NoEnergyCounter, RaplCounter
from kernelpro.records import Job, Limits, Outcome, RunConfig, Task, Verdict

TASKS = Path(__file__).parents[1] / "bad" / "task.py"
KERNELS = {"fast = 1": (0.500, 1.0), "lean = 1": (0.505, 0.8), "slow = 1": (3.0, 0.2)}
"""Sources, each with its time and its power of the baseline's."""


class Lab(KnownLab):
    """Knows the time and the power of each kernel, and tells the latter only when asked."""

    def __init__(self) -> None:
        self.metered: list[str] = []

    def verdict(self, job: Job, source: str) -> Verdict:
        ms, power = KERNELS[source]
        if job.options.energy:
            self.metered.append(f"{source} {job.options.effort}")
        return verdict(ms, power if job.options.energy else None)


class Script(Author):
    name = "script"

    async def write(self, assignment: Assignment) -> Draft:
        return Draft(list(KERNELS)[assignment.step - 1], author="script")


def run(home: Path, objective: str) -> tuple[Outcome, Engine, Lab, RunStore]:
    limits = Limits(len(KERNELS))
    config = RunConfig(
        Task("", "t"), "cuda", "script", policy="best-of-n", limits=limits, objective=objective
    )  # type: ignore[arg-type]
    store, lab = RunStore.create(home, config, "demo"), Lab()
    engine = Engine(store, lab, Script())  # type: ignore[arg-type]
    return asyncio.run(engine.run()), engine, lab, store


def test_for_speed_no_energy_is_measured(tmp_path: Path) -> None:
    outcome, _, lab, _ = run(tmp_path, "speed")
    assert outcome.best == 1 and not lab.metered and outcome.front == ()


def test_at_matched_speed_the_leanest_wins(tmp_path: Path) -> None:
    outcome, engine, lab, store = run(tmp_path, "energy-at-speed")
    assert outcome.best == 2 and outcome.verdict and outcome.verdict.energy
    assert "19.2% less energy than step 1" in " ".join(outcome.notes)
    assert lab.metered[:2] == ["fast = 1 quick", "lean = 1 quick"], (
        "what is far from its parent's speed is not measured in the search"
    )
    assert {"fast = 1 full", "lean = 1 full"} <= set(lab.metered)
    assert engine.tree.nodes[1].ms == 0.5 and engine.tree.nodes[2].ms == pytest.approx(0.505 / 1.02)
    assert engine.steps[2].ms == 0.505, "a step's own time stays what was measured"
    assert [point.step for point in outcome.front][:2] == [1, 2] and store.outcome() == outcome


def test_energy_times_delay_may_choose_the_slower_one(tmp_path: Path) -> None:
    outcome, _, _, _ = run(tmp_path, "edp")
    assert outcome.best == 2


@pytest.mark.long  # suites/test_bench.py has it of `bench`
def test_an_objective_that_cannot_be_measured_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    try:
        RaplCounter()
        pytest.skip("this CPU counts energy")
    except NoEnergyCounter as reason:
        command = [
            sys.executable,
            "-m",
            "kernelpro",
            "optimize",
            str(TASKS),
            "--author",
            f"files:{TASKS.parent}",
            "--target",
            "cpu",
        ]
        process = subprocess.run(
            [*command, "--objective", "edp", "--runs-dir", str(tmp_path / "runs")],
            capture_output=True,
            text=True,
        )
        assert process.returncode == 2 and process.stderr.strip() == f"kernelpro: objective edp: {reason}"
        assert not (tmp_path / "runs").exists()
