"""The last word of a run, and the lines on the way to it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from engine.verdicts import verdict as metered

from kernelpro.cli.commands.runs import ShowOptions
from kernelpro.cli.display import Display
from kernelpro.cli.runs import show_run
from kernelpro.engine.store import RunStore
from kernelpro.records import Interval, Outcome, RunConfig, Status, Step, Task, TaskFacts, Verdict
from kernelpro.report import collect_report, wording

CONFIG = RunConfig(Task("pass", "t"), "cpu", "playbook")
VERDICT = Verdict(
    "c",
    Status.PASSED,
    "correct; faster",
    times={"candidate": Interval(0.5, 0.4, 0.6), "compile": Interval(0.55, 0.5, 0.6)},
    speedup={"eager_fp32": Interval(2.0, 1.9, 2.1), "compile": Interval(1.1, 1.0, 1.2)},
    faster="yes",
    floor_ms=0.0025,
)
"""By the baselines' own times, taken before, it would be 1.15x."""


def finished(home: Path) -> tuple[RunStore, Outcome]:
    store = RunStore.create(home, CONFIG, "t")
    store.save_task_facts(TaskFacts({"compile": 0.575}, 0.0025, "fp32"))
    text = store.save_source("a = 1\n")
    store.save_step(
        Step(1, 0, "seed", "settled", text, text, "wider loads", author="playbook", verdict=VERDICT)
    )
    outcome = Outcome("spent", 1, VERDICT, (1,))
    store.save_outcome(outcome)
    return store, outcome


def test_commands_that_are_printed_find_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, outcome = finished(tmp_path / "my runs")
    Display(store, CONFIG, False).print_outcome(outcome)
    told = capsys.readouterr().out
    look, take = told.split("show it: ")[1].split("; export it: ")
    assert shlex.split(look) == ["kernelpro", "show", "t-1", "1", "--runs-dir", str(tmp_path / "my runs")]
    assert shlex.split(take.splitlines()[0]) == [
        "kernelpro",
        "export",
        "t-1",
        "--runs-dir",
        str(tmp_path / "my runs"),
    ]
    assert "(0.5 % reached)" in told


def test_a_step_whose_energy_was_measured_tells_it_wherever_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore.create(tmp_path, CONFIG, "t")
    store.save_task_facts(TaskFacts({"compile": 1.0}, 0.1, "fp32"))
    text = store.save_source("a = 1\n")
    step = Step(
        1, 0, "seed", "settled", text, text, "wider loads", author="playbook", verdict=metered(0.5, 0.8)
    )
    store.save_step(step)
    told = "2.00x over torch.compile; 160 mJ, 0.400 of torch.compile's"
    assert wording.describe_step(step) == f"step 1 (seed, by playbook): 0.5 ms, {told}; wider loads"
    show_run(ShowOptions(run="t-1", runs_dir=str(tmp_path)))
    assert f"0.5 ms ({told})" in " ".join(capsys.readouterr().out.split())
    refused = replace(step, verdict=metered(0.5, refused="the device was throttled"))
    assert (
        wording.describe_step(refused)
        == "step 1 (seed, by playbook): 0.5 ms, 2.00x over torch.compile; wider loads"
    )


def test_a_step_has_one_factor_and_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, _ = finished(tmp_path)
    assert (
        wording.describe_step(store.steps()[0])
        == "step 1 (seed, by playbook): 0.5 ms, 1.10x over torch.compile; wider loads"
    )
    show_run(ShowOptions(run="t-1", runs_dir=str(tmp_path)))
    assert "0.5 ms (1.10x over torch.compile)" in capsys.readouterr().out
    (step,) = collect_report(store).steps
    assert step.hardest_baseline == "compile" and step.speedup["compile"].value == 1.1
