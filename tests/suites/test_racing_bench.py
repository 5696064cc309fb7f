"""The playbook on a suite with a race, for real: its C++ drafts race in one process, and one is judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import WarmCommand

from kernelpro.authors.author import Assignment, Draft
from kernelpro.authors.playbook.playbook import Playbook
from kernelpro.engine.store import RunStore
from kernelpro.records import Options, Result, RunConfig, Task
from kernelpro.suites.results_log import LoggedResult

RACE_TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "race_table.py"
TASK = """import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def forward(self, a, b):
        return F.layer_norm(a + b, (512,))
def get_inputs():
    return [torch.randn(256, 512), torch.randn(256, 512)]
def get_init_inputs():
    return []
"""
ZEROS = TASK.replace("F.layer_norm(a + b, (512,))", "(a + b) * 0")


def command(tasks: Path, out: Path) -> list[str]:
    options = "--target cpu --quick --no-baseline compile --no-compile-seed --author playbook --race 1"
    spending = "--budget candidates=1 --finalists 0 --tune-points 0 --format json"
    return ["bench", str(tasks), "--out", str(out), *options.split(), *spending.split()]


def test_the_playbooks_designs_race_and_one_is_judged(tmp_path: Path, warm_kernelpro: WarmCommand) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "1_norm.py").write_text(TASK)
    done = warm_kernelpro(*command(tmp_path / "tasks", tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["status"] == "passed" and row["author"] == "playbook" and row["language"] == "cpp"
    (run,) = (path.parent for path in (tmp_path / "out" / "runs").glob("*/run.db"))
    store = RunStore(run)
    steps, facts = store.steps(), store.task_facts()
    assert facts and len(facts.race) == len(steps) >= 2
    assert [step.state for step in steps].count("lost race") == len(steps) - 1
    assert {design.status.value for design in facts.race.values()} == {"passed"}, "the drafts are right"
    assert store.device_seconds["race"] > 0
    store.close()


def test_it_continues_on_another_machine_and_one_problem_does_not_end_it(
    tmp_path: Path, warm_kernelpro: WarmCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "tasks").mkdir(parents=True)
    for name, text in {"1_norm": TASK, "2_bug": TASK.replace("512", "256"), "3_zeros": ZEROS}.items():
        (first / "tasks" / f"{name}.py").write_text(text)
    assert warm_kernelpro(*command(first / "tasks", first / "out"), "--ids", "1").returncode == 0
    shutil.move(first, second)

    write = Playbook.trusted_designs

    def write_or_fail(author: Playbook, assignment: Assignment) -> list[Draft]:
        assert assignment.task.name != "2_bug", "a bug"
        return write(author, assignment)

    monkeypatch.setattr(Playbook, "trusted_designs", write_or_fail)
    done = warm_kernelpro(*command(second / "tasks", second / "out"))
    assert "1 of 3 have a result already" in done.stderr
    board = json.loads(done.stdout)
    assert [row["problem"] for row in board["rows"]] == ["1 norm"]
    (bug, zeros) = board["excluded"]
    assert bug["status"] == "not run" and "AssertionError: a bug" in bug["reason"]
    assert zeros["status"] == "not_scorable" and zeros["reason"].startswith("zeros pass")
    assert "1 could not be run or judged: --retry repeats them" in done.stderr
    assert len(list((second / "out" / "runs").glob("*/run.db"))) == 3

    rows = tmp_path / "rows.jsonl"
    tables = subprocess.run(
        [sys.executable, RACE_TABLE, second / "out", "--rows", rows, "--problems"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (norm, *_) = map(json.loads, rows.read_text().splitlines())
    assert norm["problem"] == "1 norm" and norm["form"] == "own" and norm["bound"] == "memory"
    assert norm["speedup"]["eager_fp32"]["value"] == board["rows"][0]["speedup"]["eager_fp32"]["value"]
    sections = dict(part.split("\n\n", 1) for part in tables.split("\n\n## ")[1:])
    assert "- 3 problems: 1 passed, 1 not run, 1 not_scorable" in tables
    assert "| playbook | cpp | own | 1 |" in sections["Winners"]
    assert "| author | playbook | 1 | 1 |" in sections["Wins by author and language"]
    assert "| language | cpp | 1 | 1 |" in sections["Wins by author and language"]
    assert "| memory | all | 1 |" in sections["Share of the floor"]
    assert "| 1 norm | passed | playbook | cpp | own |" in sections["All scored problems"]
    assert "| x eager_fp32 | fastest baseline |" in sections["All scored problems"]
    assert "| device, race | 1 |" in sections["Device time"]
    assert "| 1 norm |" in sections["Farthest from the floor"] and "not recorded" in tables
    assert "| 2 bug | not run |" in sections["Not scored"] and "zeros pass" in sections["Not scored"]
    again = subprocess.run(
        [sys.executable, RACE_TABLE, rows, "--problems"], capture_output=True, text=True, check=True
    )
    assert again.stdout == tables, "the rows hold everything"


def test_the_table_names_what_has_not_begun_and_what_was_interrupted(tmp_path: Path) -> None:
    """As after a time limit: the folder has a scoreboard, and a run without a result."""
    task = Task(TASK, "2_interrupted")
    config = RunConfig(task, "cpu", "playbook", options=Options(effort="quick"))
    RunStore.create(tmp_path / "runs", config, "1-2-interrupted").close()
    RunStore.create(tmp_path / "runs", config, "1-3-nothing").close()
    nothing = LoggedResult("key", Result("key"), reason="it has no design", problem="1/3 nothing")
    (tmp_path / "results.jsonl").write_text(nothing.dumps() + "\n")
    (tmp_path / "scoreboard.json").write_text(json.dumps({"pending": ["1/2 interrupted", "2/7 later"]}))
    tables = subprocess.run(
        [sys.executable, RACE_TABLE, tmp_path], capture_output=True, text=True, check=True
    )
    assert "- 3 problems: 1 unfinished, 1 no kernel, 1 not begun" in tables.stdout
    assert "| all | fastest baseline | 1 | 0 |" in tables.stdout, (
        "no kernel is a failure, as on the scoreboard"
    )
    assert "| 1/3 nothing | no kernel |  |  | none raced | it has no design |" in tables.stdout
    assert "- not begun: 2/7 later" in tables.stdout
    assert "| 1/2 interrupted | unfinished |" in tables.stdout and "| 2/7 later |" not in tables.stdout


def test_rows_that_were_recorded_before_still_make_the_table() -> None:
    """Those of the first race on an H200; its page has the same mean."""
    rows = RACE_TABLE.parent / "results" / "2026-11-18-h200-playbook-race.jsonl"
    tables = subprocess.run(
        [sys.executable, RACE_TABLE, rows, "--problems"], capture_output=True, text=True, check=True
    ).stdout
    assert "- 8 problems: 7 passed, 1 unfinished" in tables
    assert "| all | fastest baseline | 7 | 7 | 1.74 [1.72, 1.76] |" in tables
    assert "| 1/36 RMSNorm_ | passed | playbook | triton |" in tables
