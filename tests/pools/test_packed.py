"""The worker as one file, with a Python that has torch and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from spooling import building, judging

from kernelpro.pools.spool.folder import SpoolFolder
from kernelpro.pools.spool.packing import pack_worker
from kernelpro.pools.spool.pool import SpoolPool
from kernelpro.records import BuildData, Status


def needed_by(name: str) -> set[str]:
    """A distribution and what it needs, as far as that is installed."""
    found, waiting = set(), [name]
    while waiting:
        try:
            this = metadata.distribution(waiting.pop())
        except metadata.PackageNotFoundError:
            continue
        if this.name.lower() not in found:
            found.add(this.name.lower())
            waiting += [
                re.split(r"[^\w.-]", wanted)[0] for wanted in this.requires or () if "extra ==" not in wanted
            ]
    return found


def python_with_torch_alone(folder: Path) -> str:
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed_by("torch") - {"setuptools", "triton"}:
        this = metadata.distribution(name)
        for top in {file.parts[0] for file in this.files or ()} - {"..", "__pycache__"}:
            source = Path(str(this.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return str(folder / "bin" / "python")


def test_one_file_and_torch_are_enough(tmp_path: Path) -> None:
    python = python_with_torch_alone(tmp_path / "venv")
    there = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    there["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    check = "import importlib.util as u; assert not [n for n in ('typer', 'rich', 'numpy', 'kernelpro') if u.find_spec(n)]"
    subprocess.run([python, "-c", check], env=there, check=True)
    pack_worker(tmp_path / "worker.pyz")
    asking = SpoolPool(tmp_path / "spool", wait=False)
    for job in (building(1), judging("2", "right"), judging("3", "wrong")):
        asking.submit(job)
    command = [python, str(tmp_path / "worker.pyz"), str(tmp_path / "spool"), "--once", "--time-limit", "600"]
    done = subprocess.run(command, env=there, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and "3 jobs done, 0 left" in done.stderr, done.stderr
    assert isinstance(built := asking.run(building(1)).data, BuildData) and not built.failure
    right, wrong = (asking.run(judging(factor)).verdict for factor in "23")
    assert right and right.status is Status.PASSED and wrong and wrong.status is Status.WRONG, done.stderr
    assert not SpoolFolder(tmp_path / "spool").live_workers()


def test_a_slot_that_is_too_short_is_not_begun_and_bad_names_are_told(tmp_path: Path) -> None:
    pack_worker(tmp_path / "worker.pyz")
    command = [sys.executable, str(tmp_path / "worker.pyz")]
    SpoolPool(tmp_path / "spool", wait=False).submit(building(1))
    done = subprocess.run(
        [*command, str(tmp_path / "spool"), "--time-limit", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "0 jobs done, 1 left" in done.stderr
    assert "--time-limit 2 is too short: the first job may take 90 s; use 120 or more" in done.stderr
    done = subprocess.run([*command, str(tmp_path / "nowhere")], capture_output=True, text=True)
    assert (
        done.returncode == 2
        and "neither a folder nor a file" in done.stderr
        and "Traceback" not in done.stderr
    )
