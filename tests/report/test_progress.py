"""The lines that a run prints while it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelpro.cli.display import Display
from kernelpro.engine.store import RunStore
from kernelpro.lab.languages.cpp import cpp
from kernelpro.lab.languages.native import BuildError
from kernelpro.records import RunConfig, Status, Step, Task, Verdict
from kernelpro.records.events import JobProgress, StepProgress
from kernelpro.records.jobs import WAITING_FOR_DEVICE
from kernelpro.report.progress import ProgressLines

CONFIG = RunConfig(Task("pass", "t"), "cpu", "playbook")
BROKEN = """
extern "C" int launch(const float* x, float* y) {
  y[0] = no_such_function(x[0]);
  return no_such_name;
}
"""


def failed(store: RunStore, reason: str) -> str:
    """The line for a step that failed with this reason."""
    verdict = Verdict("c", Status.BUILD_FAILED, reason)
    store.save_step(Step(1, 0, "seed", "settled", author="playbook", verdict=verdict))
    return ProgressLines(store).line(StepProgress(1, "settled"))


def test_a_compilers_errors_become_one_line_that_says_where_the_text_is(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as build:
        cpp(BROKEN)
    assert len(str(build.value).splitlines()) > 3
    line = failed(RunStore.create(tmp_path, CONFIG, "t"), str(build.value))
    assert line.startswith("step 1 (seed, by playbook): build_failed: kernel.cpp:3:")
    assert "no_such_function" in line and "no_such_name" not in line and "\n" not in line
    assert line.endswith(f" (whole text: kernelpro show t-1 1 --runs-dir {tmp_path})")


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("no C++ compiler found", "no C++ compiler found"),
        ("2 errors\nkernel.cu(4): error: no x\nkernel.cu(5): error: no y", "kernel.cu(4): error: no x"),
        ("raised ValueError: no\nerror: 5", "raised ValueError: no"),
        ("x" * 300, f"{'x' * 197}..."),
    ],
)
def test_a_reason_is_one_line(reason: str, line: str, tmp_path: Path) -> None:
    start, found, more = failed(RunStore.create(tmp_path, CONFIG, "t"), reason).partition(line)
    assert found and start.endswith(": build_failed: ")
    assert bool(more) == (line != reason)


def test_a_wait_for_the_device_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(RunStore.create(tmp_path, CONFIG, "t"), CONFIG, False)
    for stage in (WAITING_FOR_DEVICE, WAITING_FOR_DEVICE, "timing", WAITING_FOR_DEVICE):
        display.on_event(JobProgress("step 3", stage))
    display.on_event(JobProgress("step 4", WAITING_FOR_DEVICE))
    waits = [f"step {number}: waiting: another process is timing on this device" for number in (3, 3, 4)]
    assert capsys.readouterr().err.splitlines() == waits
