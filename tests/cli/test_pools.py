"""Where jobs are done, by a name that means the same from every folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelpro.cli.pools import absolute_pool
from kernelpro.engine.store import RunStore

BAD = Path(__file__).parents[1] / "bad"


def test_only_a_folder_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    names = ("local", "local:2", "ray://host:1", "spool:jobs", "spool:/jobs", "spool:~/jobs")
    whole = [
        "local",
        "local:2",
        "ray://host:1",
        f"spool:{tmp_path}/jobs",
        "spool:/jobs",
        "spool:/home/me/jobs",
    ]
    assert [absolute_pool(name) for name in names] == whole


def test_a_run_with_a_spool_is_resumed_from_elsewhere(tmp_path: Path) -> None:
    def kernelpro(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernelpro", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=where, env=os.environ, timeout=300)

    options = (
        "--target",
        "cpu",
        "--author",
        "playbook",
        "--pool",
        "spool:jobs",
        "--runs-dir",
        "runs",
        "--name",
        "here",
    )
    first = kernelpro(tmp_path, "optimize", str(BAD / "task.py"), *options)
    assert first.returncode == 3, first.stderr
    assert RunStore.open(tmp_path / "runs", "here-1").config().pool == f"spool:{tmp_path}/jobs"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    second = kernelpro(elsewhere, "resume", "here-1", "--runs-dir", str(tmp_path / "runs"))
    assert second.returncode == 3 and not list(elsewhere.iterdir())
