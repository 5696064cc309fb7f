"""`optimize` and `resume` for real: refused before anything is begun, or gone on with from wherever one stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from llm.asking import unanswered

from kernelpro.cli import optimize
from kernelpro.engine.store import RunStore
from kernelpro.lab import machine
from kernelpro.records import BadInput, Limits, Role, RunConfig, Task

BAD = Path(__file__).parents[1] / "bad"
SERVER = "http://localhost:1/v1#m"


def kernelpro(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=where, env=os.environ, timeout=300)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--budget", "dollars=1"), "--price m=INPUT/OUTPUT"),
        (("--budget", "dollars=1.2.3"), "--budget dollars=1.2.3: say NAME=NUMBER"),
        (("--role", "plan:effort=huge"), "--role plan: effort huge: not one of minimal"),
        (("--price", "m=dear"), "dollars per million tokens"),
        (("--tolerance", "5"), "--tolerance goes with --objective energy-at-speed or edp"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_no_run_is_begun(
    more: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    found = kernelpro(
        tmp_path,
        "optimize",
        str(BAD / "task.py"),
        "--target",
        "cpu",
        "--home",
        "runs",
        "--model",
        SERVER,
        *more,
    )
    assert found.returncode == 2 and told in found.stderr and len(found.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(machine.gpus()), reason="a GPU is here")
def test_a_gpu_that_is_not_here_may_be_elsewhere(tmp_path: Path) -> None:
    found = kernelpro(
        tmp_path,
        "optimize",
        str(BAD / "task.py"),
        "--target",
        "cuda",
        "--author",
        "playbook",
        "--home",
        "runs",
    )
    assert found.returncode == 2 and not list(tmp_path.iterdir())
    assert found.stderr.endswith(
        "run where there is a GPU, elsewhere with --pool spool:DIR or --pool ray:\n"
    ), found.stderr


def test_a_run_is_not_resumed_with_a_cap_that_would_not_hold(tmp_path: Path) -> None:
    config = RunConfig(Task("class Model: ...", "t"), "cpu", "team", {"code": SERVER})
    store = RunStore.create(tmp_path, config, "t")
    store.close()
    with pytest.raises(BadInput, match="--price m=INPUT/OUTPUT"):
        optimize.resume("t-1", ("dollars=1",), (), None, str(tmp_path), False)
    assert RunStore.open(tmp_path, "t-1").config() == config


@pytest.mark.long  # engine/test_team_run.py has a run that is resumed; this is one from another folder
def test_a_run_with_an_inbox_is_resumed_from_elsewhere(tmp_path: Path) -> None:
    options = (
        "--target",
        "cpu",
        "--baseline",
        "eager_fp32",
        "--no-compiler",
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
        "--home",
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
        "on the CPU; on a GPU: --target cuda, elsewhere with --pool spool:DIR or --pool ray:\n"
        in first.stderr
    )
    assert config.models == {"code": f"inbox:{tmp_path}/questions"}
    assert (config.roles, config.prices, config.limits) == (
        {"design": Role(effort="high")},
        {"m": "1/2"},
        Limits(1),
    )

    assert f"(questions: {tmp_path}/questions/here-1__*.md); when they are there" in first.stderr
    waiting.with_name("here-1__step-1__design.answer.md").write_text("It is fine as it is.\n")
    again = kernelpro(tmp_path, "optimize", str(BAD / "task.py"), *options, *asked)
    assert (
        again.returncode == 3
        and "here-1 was begun before with this very command, and goes on" in again.stderr
    )
    assert (
        "the last answer was malformed" in again.stderr
        and "measuring its baselines" not in again.stderr.split("goes on")[0]
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["here-1"]

    answer = f"plan: as it is\nhypothesis: memory\n\n```python\n{(BAD / 'good.py').read_text()}```\n"
    waiting.with_name("here-1__step-1__design.answer.md").write_text(answer)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = kernelpro(elsewhere, "resume", "here-1", "--home", str(tmp_path / "runs"))
    assert second.returncode == 0, second.stderr
    assert not list(elsewhere.iterdir()) and "step 1 (seed, by inbox:" in second.stderr


@pytest.mark.long
def test_a_task_that_is_no_good_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("import torch\n")
    found = kernelpro(
        tmp_path, "optimize", "empty.py", "--target", "cpu", "--author", "playbook", "--home", "runs"
    )
    assert found.returncode == 2 and "Model" in found.stderr.splitlines()[-1]
    assert not list((tmp_path / "runs").iterdir())
