"""`optimize` and `resume` for real: refused before anything is begun, or gone on with from wherever one stands."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import in_process
import pytest
from in_process import WarmCommand

if find_spec("pydantic_ai") is None:  # to import it takes a second, in every process that collects tests
    pytest.skip("pydantic-ai is not installed", allow_module_level=True)

from llm.asking import unanswered

from kernelpro.cli.commands.optimize import ResumeOptions
from kernelpro.cli.optimize import resume_run
from kernelpro.engine.store import RunStore
from kernelpro.lab import machine
from kernelpro.records import BadInput, Limits, Outcome, Role, RunConfig, Task

BAD = Path(__file__).parents[1] / "bad"
SERVER = "http://localhost:1/v1#m"


def kernelpro(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=where, env=os.environ, timeout=300)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--budget", "dollars=1"), "--price m=INPUT/OUTPUT"),
        (("--budget", "dollars=1.2.3"), "--budget dollars=1.2.3: use quick, normal, max, or NAME=NUMBER"),
        (("--role", "plan:effort=huge"), "--role plan: effort huge: not one of minimal"),
        (("--price", "m=dear"), "dollars per million tokens"),
        (("--author", "playbook"), "--author playbook uses no model"),
        (("--policy", "mtcs"), "'mtcs' (did you mean mcts?)"),
        (("--author", "plybook"), "--author plybook (did you mean playbook?): use playbook or files:DIR"),
        (("--model", "inbx:questions"), "model inbx:questions: unknown (did you mean inbox?); use openai:"),
        (("--speed-tolerance", "5"), "--speed-tolerance needs --objective energy-at-speed or edp"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_run_is_begun(
    more: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = in_process.kernelpro(
        "optimize",
        BAD / "task.py",
        "--target",
        "cpu",
        "--runs-dir",
        "runs",
        "--model",
        SERVER,
        *more,
    )
    assert found.returncode == 2 and told in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("import torch\n", (), "no class Model in task.py"),
        (
            "class A: ...\nclass B: ...\n",
            (),
            "no class Model in task.py; its classes are A, B; to use B: task.py:B",
        ),
        ("class Model: ...\n", (), "no function get_inputs in task.py"),
        ((BAD / "task.py").read_text(), ("--shape", "rows=3"), "rows is neither a parameter of get_inputs"),
    ],
)
def test_a_task_that_lacks_a_name_is_refused_before_a_run_is_begun(
    text: str, more: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(text)
    found = in_process.kernelpro("optimize", "task.py", "--author", "playbook", "--runs-dir", "runs", *more)
    assert found.returncode == 2 and message in found.stderr and len(found.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"]


@pytest.mark.skipif(bool(machine.gpus()), reason="a GPU is here")
def test_a_gpu_that_is_not_here_may_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_kernelpro: WarmCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    found = warm_kernelpro(
        "optimize",
        BAD / "task.py",
        "--target",
        "cuda",
        "--author",
        "playbook",
        "--runs-dir",
        "runs",
    )
    assert found.returncode == 2 and not list(tmp_path.iterdir())
    assert found.stderr.endswith(
        "run where there is a GPU, or use one elsewhere with --pool spool:DIR or --pool ray:\n"
    ), found.stderr


def test_a_run_is_not_resumed_with_a_cap_that_would_not_hold(tmp_path: Path) -> None:
    config = RunConfig(Task("class Model: ...", "t"), "cpu", "team", {"code": SERVER})
    store = RunStore.create(tmp_path, config, "t")
    store.close()
    with pytest.raises(BadInput, match="--price m=INPUT/OUTPUT"):
        resume_run(ResumeOptions(run="t-1", budget=["dollars=1"], runs_dir=str(tmp_path)))
    assert RunStore.open(tmp_path, "t-1").config() == config


def test_a_finished_run_is_not_worked_on_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for outcome, code in ((Outcome("the budget is spent", 1), 0), (Outcome("the budget is spent"), 1)):
        store = RunStore.create(tmp_path, RunConfig(Task("class Model: ...", "t"), "cpu", "playbook"), "t")
        store.save_outcome(outcome)
        store.close()
        assert resume_run(ResumeOptions(run=store.id, runs_dir=str(tmp_path))) == code
        message = f"run {store.id} is finished (the budget is spent); to continue it, raise its budget"
        assert message in capsys.readouterr().err
        assert not list(RunStore.open(tmp_path, store.id).events()), "nothing was started"


@pytest.mark.parametrize("budget", ["candidates=75", "candidates=2", "dollars=3"])
def test_a_finished_run_stays_finished_with_no_more_budget(tmp_path: Path, budget: str) -> None:
    config = RunConfig(Task("class Model: ...", "t"), "cpu", "playbook")
    store = RunStore.create(tmp_path, config, "t")
    store.save_outcome(Outcome("the budget is spent"))
    store.close()
    assert resume_run(ResumeOptions(run="t-1", budget=[budget], runs_dir=str(tmp_path))) == 1
    again = RunStore.open(tmp_path, "t-1")
    assert again.is_finished and again.config() == config and not list(again.events())


def test_resume_can_wait_from_now_on(tmp_path: Path) -> None:
    config = RunConfig(Task("class Model: ...", "t"), "cpu", "playbook")
    store = RunStore.create(tmp_path, config, "t")
    store.save_outcome(Outcome("the budget is spent"))
    store.close()
    resume_run(ResumeOptions(run="t-1", runs_dir=str(tmp_path), wait=True))
    assert RunStore.open(tmp_path, "t-1").config().wait


@pytest.mark.long  # engine/test_team_run.py has a run that is resumed; this is one from another folder
def test_a_run_with_an_inbox_is_resumed_from_elsewhere(tmp_path: Path) -> None:
    options = (
        "--target",
        "cpu",
        "--no-baseline",
        "compile",
        "--no-compile-seed",
        "--no-knowledge",
        "--budget",
        "candidates=1",
    )
    asked = (
        "--model",
        "inbox:questions",
        "--role",
        "design:effort=high",
        "--price",
        "m=1/2",
        "--runs-dir",
        "runs",
        "--name",
        "here",
    )
    first = kernelpro(tmp_path, "optimize", str(BAD / "task.py"), *options, *asked)
    assert first.returncode == 3, first.stderr
    (waiting,) = unanswered(tmp_path / "questions")
    assert waiting.name == "here-1__step-1__design.md"
    config = RunStore.open(tmp_path / "runs", "here-1").config()
    assert (
        "target: CPU; to use a GPU: --target cuda, or use one elsewhere with --pool spool:DIR or --pool ray:\n"
        in first.stderr
    )
    assert config.models == {"code": f"inbox:{tmp_path}/questions"}
    assert (config.roles, config.prices, config.limits) == (
        {"design": Role(effort="high")},
        {"m": "1/2"},
        Limits(1),
    )

    assert f"(questions: {tmp_path}/questions/here-1__*.md); when they have arrived" in first.stderr
    waiting.with_name("here-1__step-1__design.answer.md").write_text("It is fine as it is.\n")
    again = kernelpro(tmp_path, "optimize", str(BAD / "task.py"), *options, *asked)
    assert again.returncode == 3 and "continuing run here-1, which the same command started" in again.stderr
    assert (
        "the last answer was malformed" in again.stderr
        and "measuring its baselines" not in again.stderr.split("continuing run")[0]
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["here-1"]

    answer = f"plan: as it is\nhypothesis: memory\n\n```python\n{(BAD / 'good.py').read_text()}```\n"
    waiting.with_name("here-1__step-1__design.answer.md").write_text(answer)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = kernelpro(elsewhere, "resume", "here-1", "--runs-dir", str(tmp_path / "runs"))
    assert second.returncode == 0, second.stderr
    assert not list(elsewhere.iterdir()) and "step 1 (seed, by inbox:" in second.stderr


@pytest.mark.long
def test_a_task_that_the_worker_refuses_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(f"{(BAD / 'task.py').read_text()}\nget_inputs = 1\n")
    for author in (("--author", "playbook"), ("--model", "inbox:questions")):
        found = kernelpro(tmp_path, "optimize", "task.py", "--target", "cpu", *author, "--runs-dir", "runs")
        assert found.returncode == 2 and "no function get_inputs" in found.stderr.splitlines()[-1]
        assert not list((tmp_path / "runs").glob("*")), "not even a folder"
