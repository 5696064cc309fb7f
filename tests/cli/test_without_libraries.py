"""Where only Python and torch are installed: a worker works, everything else says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
JOB = json.dumps({"id": "e", "kind": "environment", "target": "cpu"}) + "\n"
ALL = ("typer", "rich", "pydantic", "jinja2", "click")
WAYS = {"module": ["-m", "kernelpro"], "script": ["-c", "from kernelpro.cli import main; main()"]}


def call(
    folder: Path, way: str, *arguments: object, absent: tuple[str, ...] = ALL, text: str = ""
) -> tuple[int, str, str]:
    (folder / "sitecustomize.py").write_text(BLOCK.format(names=absent))
    environment = os.environ | {"PYTHONPATH": f"{folder}:{SOURCE}"}
    command = [sys.executable, *WAYS[way], *map(str, arguments)]
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.long) if way == "module" else way for way in WAYS]
)
def test_a_worker_answers_jobs_from_stdin(way: str, tmp_path: Path) -> None:
    code, output, errors = call(tmp_path, way, "worker", "--sandbox", "process", text=JOB)
    assert code == 0, errors
    answer = json.loads(output.splitlines()[-1])
    assert (
        answer["job"] == "e"
        and answer["data"]["environment"]["torch"]
        and answer["data"]["sandbox"] == "process"
    )


def test_a_worker_serves_a_spool(tmp_path: Path) -> None:
    (tmp_path / "spool" / "jobs").mkdir(parents=True)
    code, _, errors = call(tmp_path, "module", "worker", tmp_path / "spool", "--once")
    assert code == 0 and "Traceback" not in errors, errors
    code, _, errors = call(tmp_path, "module", "worker", "--once")
    assert code == 2 and "spool" in errors.splitlines()[-1]


def test_a_worker_is_packed(tmp_path: Path) -> None:
    assert call(tmp_path, "module", "worker", "--pack", tmp_path / "worker.pyz")[0] == 0
    assert (tmp_path / "worker.pyz").stat().st_size > 10_000
    code, _, errors = call(tmp_path, "module", "worker", "--pack", tmp_path / "none" / "worker.pyz")
    assert code == 2 and "cannot be written" in errors and "Traceback" not in errors


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("absent", "arguments"), [(ALL, ["doctor"]), (ALL, []), (("rich",), ["doctor"])])
def test_other_commands_say_what_to_install(
    way: str, absent: tuple[str, ...], arguments: list[str], tmp_path: Path
) -> None:
    code, output, errors = call(tmp_path, way, *arguments, absent=absent)
    assert code == 2 and not output and len(errors.splitlines()) == 1
    assert (
        f"{absent[0] if len(absent) == 1 else 'typer'} is not installed" in errors and "pip install" in errors
    )
