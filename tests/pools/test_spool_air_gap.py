"""A whole run over two folders that share nothing: files are carried both ways, questions are answered, until it is finished."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("pydantic_ai") is None:  # to import it takes a second, in every process that collects tests
    pytest.skip("pydantic-ai is not installed", allow_module_level=True)

from llm.asking import unanswered
from spooling import BAD

pytestmark = [pytest.mark.together, pytest.mark.long]


def kernelpro(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelpro", *arguments],
        capture_output=True,
        text=True,
        cwd=where,
        timeout=300,
    )


def test_a_run_across_an_air_gap(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    answer = f"plan: as it is\nhypothesis: memory\n\n```python\n{(BAD / 'good.py').read_text()}```\n"

    def carry() -> int:
        """Jobs over, results back; how many."""
        assert kernelpro(here, "spool", "pack", "spool", "jobs.jsonl").returncode == 0
        count = len((here / "jobs.jsonl").read_text().splitlines())
        if count:
            shutil.copy(here / "jobs.jsonl", there)
            done = kernelpro(there, "worker", "jobs.jsonl", "--once")
            assert done.returncode == 0 and f"{count} jobs done, 0 left" in done.stderr, done.stderr
            shutil.copy(there / "jobs.results.jsonl", here)
            assert kernelpro(here, "spool", "merge", "spool", "jobs.results.jsonl").returncode == 0
        return count

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
    begin = (
        "optimize",
        str(BAD / "task.py"),
        *options,
        "--model",
        "inbox:questions",
        "--pool",
        "spool:spool",
        "--name",
        "gap",
    )
    run = kernelpro(here, *begin, "--runs-dir", "runs")
    carried = answered = 0
    while run.returncode == 3:
        assert "outstanding" in run.stdout + run.stderr
        moved, waiting = carry(), unanswered(here / "questions")
        for question in waiting:
            question.with_suffix(".answer.md").write_text(answer)
        assert moved or waiting, "something comes of every round"
        carried, answered = carried + moved, answered + len(waiting)
        run = kernelpro(here, "resume", "gap-1", "--runs-dir", "runs")
    assert run.returncode == 0, run.stderr
    assert carried >= 3 and answered == 1, "the ground, the candidate, the finalist; one kernel"
    assert _profiled(here) is None and carry() == 1, "the winner's profile takes one more trip"
    assert kernelpro(here, "resume", "gap-1", "--runs-dir", "runs").returncode == 0
    assert _profiled(here)


def _profiled(here: Path) -> object:
    told = kernelpro(
        here, "report", "gap-1", "--runs-dir", "runs", "--format", "json", "--out", "report.json"
    )
    assert told.returncode == 0, told.stderr
    return json.loads((here / "report.json").read_text())["winner"]["diagnosis"]
