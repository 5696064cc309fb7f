"""`judge` for real: verdicts in the order of the files, whatever became of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.cli.judge import _print_table
from kernelpro.records import Interval, Status, Task, Verdict

BAD = Path(__file__).parents[1] / "bad"


def test_verdicts_come_in_the_order_of_the_files() -> None:
    files = [str(BAD / name) for name in ("good.py", "absent.py", "syntax_error.py")]
    command = [
        sys.executable,
        "-m",
        "kernelpro",
        "judge",
        str(BAD / "task.py"),
        *files,
        "--target",
        "cpu",
        "--quick",
        "--json",
    ]
    done = subprocess.run([*command, "--baseline", "eager_fp32"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert [json.loads(line)["candidate"] for line in done.stdout.splitlines()] == files


def test_the_table_shows_what_two_digits_would_hide(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"candidate": Interval(0.00271, 0.0027, 0.0028), "compile": Interval(0.00277, 0.0027, 0.0028)}
    for speedup in (Interval(1.0214, 1.0187, 1.0241), Interval(1.0214, 0.9187, 1.1241)):
        passed = Verdict(
            "k.py",
            Status.PASSED,
            "correct",
            times=times,
            speedup={"compile": speedup},
            faster="yes",
            floor_ms=2e-5,
        )
        _print_table(Task("", "t"), [Verdict.from_json(passed.to_json() | {"own_share": 0.006})])
    narrow, wide = (line.split("│") for line in capsys.readouterr().out.splitlines() if "k.py" in line)
    assert [cell.strip() for cell in narrow[3:5]] == ["0.00271", "1.021 [1.019, 1.024]"]
    assert [cell.strip() for cell in narrow[7:9]] == ["0.74 %", "0.6 %"]
    assert wide[4].strip() == "1.02 [0.92, 1.12]"


def test_where_nothing_was_run_no_machine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _print_table(Task("", "t"), [Verdict("k.py", Status.BUILD_FAILED, "k.py: no such file")])
    assert capsys.readouterr().out.splitlines()[0].strip() == "t, mode train"
