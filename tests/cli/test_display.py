"""The last word of a run, and the lines on the way to it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from engine.verdicts import verdict as metered

from kernelpro.cli.commands.runs import RunsOptions, ShowOptions
from kernelpro.cli.display import Display
from kernelpro.cli.runs import list_runs, show_run
from kernelpro.engine.store import RunStore
from kernelpro.records import Interval, NoVerdict, Outcome, RunConfig, Status, Step, Task, TaskFacts, Verdict
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


def test_the_winner_is_shown_with_its_final_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, _ = finished(tmp_path)
    final = replace(VERDICT, times=VERDICT.times | {"candidate": Interval(0.45, 0.44, 0.46)})
    store.save_outcome(Outcome("spent", 1, final, (1,)))
    show_run(ShowOptions(run="t-1", runs_dir=str(tmp_path)))
    show_run(ShowOptions(run="t-1", step=1, runs_dir=str(tmp_path)))
    told = capsys.readouterr().out
    assert "0.45 ms (1.10x over torch.compile; final; 0.5 ms in the search)" in told
    assert "time: 0.45 ms (final; 0.5 ms in the search)" in told


def test_a_stopped_run_is_listed_with_its_best_step_and_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(CONFIG, author="team", models={"code": "anthropic:m", "plan": "anthropic:m"})
    store = RunStore.create(tmp_path, config, "t")
    for number, ms in ((1, 0.5), (2, 0.4)):
        store.save_step(Step(number, 0, "seed", "settled", author="m", verdict=metered(ms)))
    list_runs(RunsOptions(runs_dir=str(tmp_path)))
    told = capsys.readouterr().out
    assert "2.50x [2.48, 2.52] over compile so far" in " ".join(told.replace("│", " ").split()), told
    assert "anthropic:m" in told and "team" not in told


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (NoVerdict.NO_IDEA, "step 3 (improve of 2): the author has no idea for it: every move was tried"),
        (
            NoVerdict.UNREACHABLE,
            "step 3 (improve of 2): the model could not be reached: every move was tried",
        ),
    ],
)
def test_a_step_without_code_says_why(reason: NoVerdict, words: str) -> None:
    step = Step(3, 2, "improve", "settled", no_verdict=reason, note="every move was tried")
    assert wording.describe_step(step) == words


def test_a_number_is_rounded_before_its_prefix_is_chosen() -> None:
    assert [wording.format_scaled(value) for value in (999.4, 999.9, 999_900, 63.2e9)] == [
        "999 ",
        "1 k",
        "1 M",
        "63.2 G",
    ]


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
