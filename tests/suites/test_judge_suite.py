"""benchmarks/judge_suite.py on the CPU: rows as it goes, nothing twice, all levels early, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "judge_suite.py"
TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, what in {
        "level1/1_tanh": "torch.tanh(x)",
        "level1/2_sine": "torch.sin(x)",
        "level2/1_random": "torch.rand_like(x) + x",
        "level2/2_broken": "x +",
    }.items():
        path = tmp_path / "suite" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TASK.format(what))
    return tmp_path / "suite"


def judge(suite: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--target", "cpu", "--baselines", "eager_fp32", "--ahead", "0", "--out", str(out), *more]
    command = [sys.executable, str(SCRIPT), str(suite), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_each_problem_gets_one_row_and_a_second_call_judges_what_is_missing(
    suite: Path, tmp_path: Path
) -> None:
    out, second = tmp_path / "out", tmp_path / "second"
    first = judge(suite, out, "--ids", "1")
    assert first.returncode == 0, first.stderr
    assert [row["problem"] for row in rows(out)] == ["1/1 tanh", "2/1 random"], "both levels"
    assert [row["status"] for row in rows(out)] == ["passed", "not_scorable"]
    assert rows(out)[0]["candidate"] == "reference" and rows(out)[0]["seconds"]["time"] > 0

    process = judge(suite, second, "--previous", str(out / "rows.jsonl"))
    assert process.returncode == 0, process.stderr
    assert {row["problem"]: row["status"] for row in rows(second)} == {
        "1/2 sine": "passed",
        "2/2 broken": "error",
    }
    (broken,) = (row for row in rows(second) if row["status"] == "error")
    assert "syntax error" in broken["reason"]
    assert "2 problems to look at, 2 done before" in process.stderr
    assert "| 2/2 broken | reference | error |" in process.stdout

    both = [str(folder / "rows.jsonl") for folder in (out, second)]
    table = subprocess.run([sys.executable, str(SCRIPT), "--table", *both], capture_output=True, text=True)
    assert "| all | 4 | 2 |" in table.stdout


def test_out_of_time_it_stops_and_says_what_is_left(suite: Path, tmp_path: Path) -> None:
    process = judge(suite, tmp_path / "out", "--seconds", "0")
    assert process.returncode == 3 and "time is up: 4 left" in process.stderr
    assert rows(tmp_path / "out") == []


@pytest.mark.long
def test_references_are_compiled_ahead_and_small_ones_drawn(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (suite / "level2" / "2_broken.py").unlink()
    out = tmp_path / "out"
    process = judge(
        suite, out, "--ahead", "2", "--sample", "2", "--max-gb", "1", "--baselines", "eager_fp32,compile"
    )
    assert process.returncode == 0, process.stderr
    assert len(rows(out)) == 2
    for row in rows(out):
        assert row["eager_gb"] is not None and row["eager_gb"] < 0.001
        random = row["problem"] == "2/1 random"
        assert row["candidate"] == ("reference" if random else "torch.compile")
        assert ("random numbers" in row["ahead_reason"]) == random
    compiled = (tmp_path / "cache" / "kernelpro" / "compiled" / "inductor" / "fxgraph").glob("*/*/*")
    assert len(list(compiled)) == 2, "the judge finds what was compiled ahead"
