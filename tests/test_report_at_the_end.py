"""However a run ends, it leaves a report in its folder and says where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.cli.commands.runs import ReportOptions
from kernelpro.cli.runs import write_report
from kernelpro.records import BadInput

ROOT = Path(__file__).parents[1]
CONSTANT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""


def kernelpro(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "KERNELPRO_RUNS_DIR": str(home),
        "XDG_DATA_HOME": str(home / "data"),
    }
    return subprocess.run(
        [sys.executable, "-m", "kernelpro", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )


def offered(folder: Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        shutil.copy(ROOT / "tests" / "bad" / name, folder)
    return f"files:{folder}"


@pytest.mark.long  # the next one has a report without a winner too
def test_a_run_in_which_nothing_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    author = offered(tmp_path / "candidates", "compiler_error.py", "nan.py")
    task = str(ROOT / "tests" / "bad" / "task.py")
    home = tmp_path / "runs"
    done = kernelpro(
        home,
        "optimize",
        task,
        "--author",
        author,
        "--target",
        "cpu",
        "--no-baseline",
        "compile",
        "--no-compile-seed",
    )
    page = home / "bad-1" / "report.html"
    assert done.returncode == 1, done.stderr
    assert f"report: {page}" in done.stdout and "No winner: none of 2 candidates passed" in page.read_text()
    assert write_report(ReportOptions(run="bad-1", format="json", out="-", runs_dir=str(home))) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(step["author"], step["ms"]) for step in data["steps"][:2]] == [
        ("compiler_error.py", None),
        ("nan.py", None),
    ]
    assert data["roofline"]["stops"][0]["label"] == "PyTorch eager (FP32)", (
        "the task's work is kept with the ground"
    )
    assert write_report(ReportOptions(run="bad-1", format="md", runs_dir=str(home))) == 0
    assert capsys.readouterr().out.strip() == str(home / "bad-1" / "report.md")


def test_a_task_that_cannot_be_scored(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(CONSTANT)
    author = offered(tmp_path / "candidates", "nan.py")
    words = (
        "optimize",
        str(tmp_path / "task.py"),
        "--author",
        author,
        "--target",
        "cpu",
        "--no-baseline",
        "compile",
        "--json",
    )
    done = kernelpro(tmp_path / "runs", *words)
    assert done.returncode == 2 and "cannot be scored" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "runs").glob("*/run.db")), "there is nothing to resume"


def test_an_unknown_run_and_a_bad_format_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run nobody"):
        write_report(ReportOptions(run="nobody", runs_dir=str(tmp_path)))
    done = kernelpro(tmp_path, "report", "nobody", "--format", "pdf")
    assert done.returncode == 2 and "'pdf' is not one of 'html', 'md', 'json'" in done.stderr
