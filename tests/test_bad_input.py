"""Bad input, through the command line: each ends in its own status with one clear reason, the next one is
judged normally, and neither process nor file is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import in_process
import pytest
from in_process import WarmCommand

BAD = Path(__file__).parent / "bad"
EXPECTED = {
    "syntax_error.py": ("build_failed", "syntax error in line 1"),
    "no_model.py": ("build_failed", "defines no class ModelNew"),
    "compiler_error.py": ("build_failed", "undeclared"),
    "two_outputs.py": ("wrong", "returns 2 tensors, should return 1"),
    "wrong_shape.py": ("wrong", "has shape [16384], should be [64, 256]"),
    "wrong_dtype.py": ("wrong", "is float64, should be float32"),
    "not_a_tensor.py": ("wrong", "returns 0 tensors, should return 1"),
    "nan.py": ("wrong", "worst at [3, 5]: got nan"),
    "raises_in_forward.py": ("crashed", "forward raised ValueError: not today (line 6"),
    "raises_at_import.py": ("crashed", "importing the candidate: RuntimeError: not today"),
    "raises_in_constructor.py": ("crashed", "ModelNew() raised KeyError"),
    "segfault.py": ("crashed", "SIGSEGV"),
    "endless_loop.py": ("timed_out", "in forward: took more than 2 s and was killed"),
    "endless_native.py": ("timed_out", "in forward: took more than 2 s and was killed"),
    "endless_import.py": ("timed_out", "loading the candidate: took more than 2 s and was killed"),
    "endless_constructor.py": ("timed_out", "loading the candidate: took more than 2 s and was killed"),
    "endless_build.py": ("timed_out", "building: compiling took more than 3 s and was killed"),
    "allocates_100_gb.py": ("crashed", "forward ran out of memory"),
    "eats_memory.py": ("crashed", "memory"),
    "fills_the_disk.py": ("crashed", "No space left on device"),
    "exits.py": ("crashed", "exit"),
    "prints_1_gb.py": ("passed", "correct"),
    "good.py": ("passed", "correct"),
}


def leftovers(folder: Path) -> tuple[list[str], list[str]]:
    """Processes that work below a folder (every one of ours does), and what lies in it."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(entry / "cwd")
        except OSError:
            continue
        if place.startswith(str(folder)):
            processes.append(entry.name)
    return processes, sorted(str(path) for path in folder.iterdir())


def kernelpro(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelpro", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | changes, timeout=300)


def judged(names: Iterable[str], seconds: int, folder: Path) -> dict[str, dict[str, Any]]:
    """One object a candidate; nothing is left behind, and nothing but a word is said."""
    options = ["--quick", "--no-baseline", "compile", "--target", "cpu", "--memory", "2", "--json"]
    limits = ["--timeout", str(seconds), "--build-timeout", str(seconds + 1)]
    done = kernelpro(
        "judge",
        str(BAD / "task.py"),
        *(str(BAD / name) for name in names),
        *options,
        *limits,
        TMPDIR=str(folder),
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers(folder) == ([], [])
    found = {Path(line["candidate"]).name: line for line in map(json.loads, done.stdout.splitlines())}
    assert list(found) == list(names), "verdicts come in the order of the files"
    return found


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """In two calls, each followed by others, the good one last: those without end, which need not be waited for long, and the
    others, which may take long on a busy machine."""
    folder = tmp_path_factory.mktemp("scratch")
    endless = [name for name in EXPECTED if name.startswith("endless")]
    found = judged(endless, 2, folder) | judged(
        [name for name in EXPECTED if name not in endless], 60, folder
    )
    assert len(found) == len(EXPECTED)
    return found


@pytest.mark.alone  # a thousand processes leave no room for others
def test_a_fork_bomb_ends_and_the_next_one_is_judged(tmp_path: Path) -> None:
    found = judged(["fork_bomb.py", "good.py"], 60, tmp_path)
    assert [line["status"] for line in found.values()] == ["crashed", "passed"]
    assert "started more than 256 processes" in found["fork_bomb.py"]["reason"]


@pytest.mark.parametrize("name", EXPECTED)
def test_each_ends_in_its_own_status_with_one_clear_reason(
    name: str, verdicts: dict[str, dict[str, Any]]
) -> None:
    status, reason = EXPECTED[name]
    assert verdicts[name]["status"] == status, verdicts[name]["reason"]
    assert reason in verdicts[name]["reason"]


def test_a_passed_verdict_has_every_key(verdicts: dict[str, dict[str, Any]]) -> None:
    verdict = verdicts["good.py"]
    keys = ["candidate", "status", "reason", "error", "times", "speedup", "faster"]
    keys += ["floor_ms", "own_share", "peak_bytes", "sandbox", "environment"]
    assert not [key for key in keys if verdict.get(key) is None]
    for group in ("times", "speedup"):
        for interval in verdict[group].values():
            assert interval["low"] <= interval["value"] <= interval["high"]
    assert verdict["faster"] in ("yes", "no", "unclear")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "task file not found"),
        ("def f(:", "syntax error in line 1"),
        ("x = 1", "no class Model"),
        ("class Net: ...", "task.py; to use Net: "),
        ("class Model: ...", "no function get_inputs in "),
        ("from os.path import *\nraise ValueError('no')", "importing it raised ValueError: no"),
    ],
)
def test_a_bad_task_is_one_line_and_exit_code_2(
    text: str | None, message: str, tmp_path: Path, warm_kernelpro: WarmCommand
) -> None:
    task = tmp_path / "task.py"
    if text is not None:
        task.write_text(text)
    done = warm_kernelpro("judge", task, BAD / "good.py", "--target", "cpu")
    assert done.returncode == 2
    # on a busy machine it also says what it waits for
    (told,) = (line for line in done.stderr.splitlines() if not line.endswith("good.py: building"))
    assert message in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["--precision", "fp12"],
        ["--target", "tpu"],
        ["--baseline", "eager"],
        ["--quick", "--full"],
        ["--sandbox", "bubble"],
        ["--mode", "test"],
        ["--timeout", "inf"],
        ["--memory", "nan"],
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    done = in_process.kernelpro("judge", BAD / "task.py", BAD / "good.py", *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and arguments[0].strip("-") in done.stderr


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    options = ["--quick", "--no-baseline", "compile", "--target", "cpu", "--json"]
    done = kernelpro(
        "judge", str(BAD / "task.py"), str(BAD / "segfault.py"), *options, PATH="/nonexistent", CXX=""
    )
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["status"]) == (1, "build_failed")
    assert "install g++" in verdict["reason"]


@pytest.mark.long  # a run is told the same: cli/test_optimize.py
def test_no_gpu_is_said_clearly() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = kernelpro("judge", str(BAD / "task.py"), str(BAD / "good.py"), "--target", "cuda")
    assert done.returncode == 2 and "no CUDA device" in done.stderr
