"""What `show` tells of a step: who wrote it, what was asked and answered, what came of it."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from engine import verdicts

from kernelpro.cli.commands.runs import RunsOptions, ShowOptions
from kernelpro.cli.runs import delete_runs, list_runs, show_run
from kernelpro.engine.store import RunStore
from kernelpro.llm.question import Exchange, ModelError, Question
from kernelpro.llm.transcripts import FILE, Transcripts
from kernelpro.records import (
    BadInput,
    Cost,
    Interval,
    Outcome,
    RunConfig,
    Status,
    Step,
    StepDetails,
    Task,
    TaskFacts,
    Verdict,
)
from kernelpro.records.events import RunFailed, RunPaused, RunStarted
from kernelpro.records.jobs import Tuning, TuningPoint


class Anything:
    description = "Anything."

    def parse(self, text: str) -> str:
        return text


def verdict() -> Verdict:
    one = Interval(0.5, 0.4, 0.6)
    times, speedup = {"candidate": one}, {"compile": Interval(2.0, 1.9, 2.1)}
    return Verdict(
        "c",
        Status.PASSED,
        "correct; faster",
        error=1e-7,
        tolerance=1e-5,
        times=times,
        speedup=speedup,
        faster="yes",
    )


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path, RunConfig(Task("pass", "t"), "cpu", "team"), "t")
    store.save_task_facts(TaskFacts({"compile": 1.0}, 0.1, "fp32", seed_errors="no luck"))
    compiled = store.save_source("# by the compiler\na = 1\n")
    better = store.save_source("# by a model\na = 2\n")
    store.save_step(
        Step(
            1, 0, "seed", "settled", compiled, compiled, "as it is", author="torch.compile", verdict=verdict()
        )
    )
    points = tuple(TuningPoint({"BLOCK": block}, Status.PASSED, 0.5, "quick") for block in (32, 64))
    details = StepDetails(diagnostic="narrow_access", tuning=Tuning({"BLOCK": 64}, "fastest", points))
    told = {
        "plan": "wider loads",
        "author": "m",
        "cost": Cost(0.01, 100, 20, 2),
        "verdict": verdict(),
        "details": details,
    }
    store.save_step(Step(2, 1, "improve", "settled", better, better, **told))  # type: ignore[arg-type]
    for step, prompt, answer in ((2, "make it wider", "a = 2"), (21, "not of step 2", "no")):
        question: Question[Any] = Question(f"step-{step}/plan", "plan", "be terse", prompt, Anything())  # type: ignore[arg-type]
        exchange = Exchange(text=answer, dollars=Decimal("0.01"), tokens_in=100, tokens_out=20, calls=1)
        exchange.add("system", "be terse")
        exchange.add("user", prompt)
        exchange.add("assistant", answer)
        Transcripts(store.folder / FILE, "1-abc").append("m", question, exchange)
    failed = Exchange(
        messages=[{"role": "user", "text": "x"}], dollars=Decimal("0.02"), tokens_in=300, calls=2
    )
    asked: Question[Any] = Question("step-2/code", "code", "be terse", "write", Anything())  # type: ignore[arg-type]
    Transcripts(store.folder / FILE, "1-abc").append(
        "m", asked, failed, ModelError("it was malformed 3 times")
    )
    store.save_outcome(Outcome("spent", 2, verdict(), (2,), ("a note",)))
    return store


def test_a_step_is_shown_with_its_prompts_and_answers(
    run: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        show_run(ShowOptions(run=run.id, step=2, plot=None, runs_dir=str(run.folder.parent), json=False)) == 0
    )
    shown = capsys.readouterr().out
    for part in (
        "improve of step 1, by m",
        "wider loads",
        "narrow_access",
        "BLOCK=64 after 2",
        "$0.030",
        "1.00e-07",
    ):
        assert part in shown
    assert (
        "=== plan: m, answered" in shown
        and "--- user\nmake it wider" in shown
        and "--- assistant\na = 2" in shown
    )
    assert "not of step 2" not in shown
    assert "-a = 1\n+# by a model\n+a = 2" in shown and shown.rstrip().endswith("# by a model\na = 2")


def test_what_each_role_cost_is_shown_with_what_failed(
    run: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    show_run(ShowOptions(run=run.id, step=None, plot=None, runs_dir=str(run.folder.parent), json=False))
    shown = [line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines()]
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in shown}
    assert rows["plan"] == ["2", "200", "40", "0.0200"] and rows["code"] == ["2", "300", "0", "0.0200"]
    assert rows["total"] == ["4", "500", "40", "0.0400"] and "prompts: 1-abc" in rows


def test_what_the_compiler_wrote_is_called_so(run: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(ShowOptions(run=run.id, step=None, plot=None, runs_dir=str(run.folder.parent), json=False))
    tree = capsys.readouterr().out
    assert "1 seed by torch.compile" in tree and "note: a note" in tree and "note: no luck" in tree
    show_run(ShowOptions(run=run.id, step=1, plot=None, runs_dir=str(run.folder.parent), json=False))
    assert "seed by torch.compile" in capsys.readouterr().out


def test_json_holds_the_exchanges_as_well(run: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(ShowOptions(run=run.id, step=2, plot=None, runs_dir=str(run.folder.parent), json=True))
    record = json.loads(capsys.readouterr().out)
    assert [message["text"] for message in record["exchanges"][0]["messages"]] == [
        "be terse",
        "make it wider",
        "a = 2",
    ]
    assert record["cost"]["dollars"] == pytest.approx(0.03)


def test_speed_against_energy_is_drawn_before_a_run_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore.create(tmp_path, RunConfig(Task("pass", "t"), "cpu", "team", objective="edp"), "t")
    picture = tmp_path / "front.svg"

    def plot(found: Verdict) -> None:
        store.save_step(Step(1, 0, "seed", "settled", verdict=found))
        show_run(ShowOptions(run=store.id, step=None, plot=str(picture), runs_dir=str(tmp_path), json=False))

    with pytest.raises(BadInput, match="has no energy measurements; --objective"):
        plot(verdict())
    with pytest.raises(BadInput, match="has no energy measurements: no counter"):
        plot(verdicts.verdict(0.5, refused="no counter"))
    plot(verdicts.verdict(0.5, 0.8))
    assert "step 1" in picture.read_text() and "unfinished" in capsys.readouterr().out


def test_runs_are_told_apart_by_how_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(Task("pass", "t"), "cpu", "team")
    started, paused, failed = RunStarted(), RunPaused("an answer"), RunFailed("an error")
    for events in ((), (started,), (started, paused), (started, paused, started, failed)):
        store = RunStore.create(tmp_path, config, "t")
        for event in events:
            store.add_event(event)
        store.close()
    ended, busy = (RunStore.create(tmp_path, config, "t") for _ in range(2))
    ended.save_outcome(Outcome("spent"))
    busy.lock()
    busy.save_outcome(Outcome("spent, but more is wanted"))
    assert list_runs(RunsOptions(runs_dir=str(tmp_path), json=True)) == 0
    told = {line["run"]: line["state"] for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [told[f"t-{n}"] for n in range(1, 7)] == [
        "stopped",
        "stopped",
        "waiting",
        "failed",
        "finished",
        "running",
    ]


def test_a_run_is_deleted_unless_somebody_works_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(Task("pass", "t"), "cpu", "team")
    for _ in range(3):
        RunStore.create(tmp_path, config, "t").close()
    busy = RunStore.open(tmp_path, "t-2")
    busy.lock()
    with pytest.raises(BadInput, match="run t-2 is in use by another process"):
        delete_runs(RunsOptions(delete=["t-1", "t-2", "t-3"], runs_dir=str(tmp_path)))
    assert capsys.readouterr().err == "deleted: t-1\n" and {path.name for path in tmp_path.iterdir()} == {
        "t-2",
        "t-3",
    }
    with pytest.raises(BadInput, match="there is no run t-1"):
        delete_runs(RunsOptions(delete=["t-1"], runs_dir=str(tmp_path)))


def test_a_run_stopped_before_its_task_was_measured_has_no_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore.create(tmp_path, RunConfig(Task("pass", "t"), "cpu", "playbook"), "t")
    show_run(ShowOptions(run=store.id, runs_dir=str(tmp_path)))
    shown = capsys.readouterr().out
    assert "t-1: reference, not measured yet" in shown and "0.0000" not in shown
    assert f"unfinished; continue with: kernelpro resume t-1 --runs-dir {tmp_path}" in " ".join(shown.split())
