"""The command line as a whole: names, help, choices and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (
    *("init", "optimize", "resume", "judge", "profile", "runs", "show", "export", "report", "bench"),
    *("worker", "spool", "diagnostics", "code-search", "knowledge", "doctor"),
)


def kernelpro(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", *words]
    environment = {"COLUMNS": "160", "NO_COLOR": "1"} | environment
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


def test_help_lists_all_commands() -> None:
    page = kernelpro("--help")
    assert page.returncode == 0 and all(f" {name} " in page.stdout for name in COMMANDS)
    assert "--install-completion" in page.stdout


def test_options_are_grouped_and_choices_are_shown() -> None:
    page = kernelpro("optimize", "--help").stdout
    for panel in ("Task", "Model", "Search", "Budget", "Measurement", "Where jobs run", "Output"):
        assert f"─ {panel} ─" in page
    assert "<cuda|cpu>" in page and "<speed|energy-at-speed|edp>" in page


def test_help_imports_neither_torch_nor_the_lab() -> None:
    code = (
        "import sys; sys.argv = ['kernelpro', '--help']\n"
        "import kernelpro.cli\n"
        "try: kernelpro.cli.main()\n"
        "finally: assert not {'torch', 'kernelpro.lab', 'kernelpro.engine', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("judge", "a.py", "b.py", "--target", "tpu"), "'--target': 'tpu' is not one of 'cuda', 'cpu'"),
        (("optimize", "a.py", "--baseline", "eager"), "'--baseline': 'eager' is not one of"),
        (("optimize", "a.py", "--language", "rust"), "'--language': 'rust' is not one of 'triton'"),
        (("optimize",), "kernelpro optimize --help` explains it"),
        (("optimise", "a.py"), "No such command 'optimise'"),
        (("optimize", "a.py", "--concurrency", "0"), "--concurrency"),
        (("optimize", "task.py", "--candidates", "5"), "--candidates; use --budget candidates=N"),
        (("report", "nobody", "--format", "pdf"), "'--format': 'pdf' is not one of 'html', 'md', 'json'"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(words: tuple[str, ...], message: str) -> None:
    done = kernelpro(*words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert done.stderr.startswith("kernelpro: ") and len(done.stderr.splitlines()) == 1


def test_init_writes_a_task_and_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    done = kernelpro("init", str(file))
    assert done.returncode == 0 and f"kernelpro optimize {file}" in done.stdout
    text = file.read_text()
    compile(text, str(file), "exec")
    assert all(name in text for name in ("class Model", "def get_inputs", "def get_init_inputs"))
    again = kernelpro("init", str(file))
    assert again.returncode == 2 and "exists: give another name" in again.stderr and file.read_text() == text
