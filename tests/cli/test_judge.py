"""`judge` for real: what is refused, what its table says, and what a bug of ours looks like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.cli.commands import app
from kernelpro.cli.errors import run_reporting_errors
from kernelpro.cli.judge import print_table
from kernelpro.lab.worker import SHARED_IMPORT
from kernelpro.pools import process
from kernelpro.records import Interval, Status, Task, Verdict

BAD = Path(__file__).parents[1] / "bad"


def judge(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", "judge", str(BAD / "task.py"), *words, "--target", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.py"], "candidate file not found: absent.py"),
        (
            [str(BAD / "good.py"), "--disable-tripwire", "nonsense"],
            "unknown tripwire 'nonsense': choose from all, ",
        ),
    ],
)
def test_misuse_is_one_line_before_anything_is_judged(words: list[str], message: str) -> None:
    done = judge(*words)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_without_a_worker_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = judge(str(BAD / "good.py"), "--pool", f"spool:{tmp_path}")
    assert done.returncode == 3
    assert f"1 result is outstanding; start a worker with `kernelpro worker {tmp_path}`" in done.stderr


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
        print_table(Task("", "t"), [Verdict.from_json(passed.to_json() | {"own_share": 0.006})])
    narrow, wide = (line.split("│") for line in capsys.readouterr().out.splitlines() if "k.py" in line)
    assert [cell.strip() for cell in narrow[3:5]] == ["0.00271", "1.021 [1.019, 1.024]"]
    assert [cell.strip() for cell in narrow[7:9]] == ["0.74 %", "0.6 %"]
    assert wide[4].strip() == "1.02 [0.92, 1.12]"


def test_where_nothing_was_run_no_machine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Task("", "t"), [Verdict("k.py", Status.BUILD_FAILED, "k.py: no such file")])
    assert capsys.readouterr().out.splitlines()[0].strip() == "t, mode train"


def test_notes_name_their_candidates_unless_they_concern_all(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        Verdict(f"{name}.py", Status.WRONG, "off", notes=("of all", *notes))
        for name, notes in (("a[1]", ("slow [cold]",)), ("b", ("slow [cold]", "of b")), ("c", ()))
    ]
    print_table(Task("", "t"), verdicts)
    table = capsys.readouterr().out
    assert "│ a[1].py" in table
    assert table.splitlines()[-3:] == [
        "note: of all",
        "note on a[1].py, b.py: slow [cold]",
        "note on b.py: of b",
    ]


BUGGY_WORKER = """
from kernelpro.lab import jobs, worker
def judge(self, job):
    return {}["a bug"]
jobs.JobRunner._run_on_device = judge
worker.main()
"""


def test_a_bug_of_ours_is_not_blamed_on_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "worker.py").write_text(BUGGY_WORKER)
    command = [sys.executable, str(tmp_path / "worker.py"), SHARED_IMPORT]
    monkeypatch.setattr(process, "COMMAND", command)
    words = ["judge", str(BAD / "task.py"), str(BAD / "good.py"), "--json", "--target", "cpu"]
    assert run_reporting_errors(lambda: app(words, standalone_mode=False)) == 4
    out, err = capfd.readouterr()
    verdict = json.loads(out)
    assert verdict["status"] == "internal_error"
    assert "KeyError: 'a bug' in worker.py, line 4; please report it" in verdict["reason"]
    assert err.count("Traceback") == 2, "another worker had a second attempt"


def test_a_bug_of_the_command_line_asks_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        return int([][0])

    assert run_reporting_errors(command) == 4
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("kernelpro: internal error of KernelPro: IndexError: ")
