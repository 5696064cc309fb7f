"""Time limits: compilers have one of their own, and nothing else gets it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from quick_judge import QuickJudge

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.sandbox import procfs
from kernelpro.lab.sandbox.compilation import (
    TimeLimitExceeded,
    TimeLimits,
    announced_compilation,
    is_compiling,
)
from kernelpro.records import Candidate, Job, Options, Status, Task

BAD = Path(__file__).parents[1] / "bad"
TASK = Task(
    "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.tanh(x)\n"
    "def get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n"
)


def test_a_compiler_among_the_processes_is_seen(tmp_path: Path) -> None:
    compiler = tmp_path / "cc1plus"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", compiler)
    for program, expected in ((str(compiler), True), ("sleep", False)):
        with subprocess.Popen([program, "60"]) as process:
            pids = [os.getpid(), process.pid]
            while procfs.thread_name(process.pid, process.pid) != Path(program).name:
                time.sleep(0.01)  # the program has not started yet
            seen = is_compiling(pids)
            process.kill()
            process.wait()
            assert seen is expected and not is_compiling(pids)


def test_a_compiler_on_the_stack_is_seen() -> None:
    """By the name of a thread: so that a process outside can see it."""
    wait = compile("while not done.is_set() and is_compiling([pid]) is not expected: pass", "FILE", "exec")
    for file, expected in (("/lib/triton/compiler/compiler.py", True), ("/lib/torch/nn/module.py", False)):
        done = threading.Event()
        timer = threading.Timer(20, done.set)
        timer.start()
        with announced_compilation():
            exec(
                wait.replace(co_filename=file),
                {"done": done, "is_compiling": is_compiling, "pid": os.getpid(), "expected": expected},
            )
        timer.cancel()
        assert not done.is_set(), file
    assert not is_compiling([os.getpid()])


def test_compiling_and_running_have_their_own_limits() -> None:
    def sleep(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    with pytest.raises(TimeLimitExceeded, match=r"^took more than 0\.1 s"):
        TimeLimits(0.1, 60).wait(sleep, lambda: False)
    with pytest.raises(TimeLimitExceeded, match=r"^compiling took more than 0\.2 s"):
        TimeLimits(60, 0.2).wait(sleep, lambda: True)


COMPILES_LATE = """
import torch
from kernelpro import runtime
class ModelNew(torch.nn.Module):
    def forward(self, x):
        lib = runtime.cpp(r'''
            #include <math.h>
            constexpr long slow() { long sum = 0; for (long i = 0; i < 600000; ++i) sum += i % 7; return sum; }
            constexpr long value = slow();
            extern "C" void go(const float* x, float* y, long n) {
                for (long i = 0; i < n; ++i) y[i] = tanhf(x[i]) + 0 * value;
            }''', flags=["-fconstexpr-ops-limit=9000000000", "-fconstexpr-loop-limit=2147483647"])
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
"""


def test_a_first_call_that_compiles_is_given_the_time_to_build(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(TASK, Candidate(COMPILES_LATE), call_timeout=10.0, build_timeout=120.0)
    assert verdict.status is Status.PASSED, verdict.reason
    assert any(note.startswith("compilers ran for") for note in verdict.notes)
    verdict = quick_judge.judge(TASK, Candidate(COMPILES_LATE), call_timeout=60.0, build_timeout=0.4)
    assert verdict.status is Status.TIMED_OUT and "compiling took more than 0.4 s" in verdict.reason


BUILDS = "from kernelpro import runtime\nlib = runtime.cpp('extern \"C\" void go() {}')\n"
ENDLESS_POINT = """
import torch
STEP = 1  # tune: 0, 1
class ModelNew(torch.nn.Module):
    def forward(self, x):
        i = 0
        while i < 10:
            i += STEP
        return torch.tanh(x)
"""


def test_whatever_does_not_end_is_killed_after_the_time_of_a_call(
    quick_judge: QuickJudge, worker: JobRunner
) -> None:
    """However long a build may take: in the build sandbox, in a profile, and at a point of the tunables."""
    limits = {"call_timeout": 2.0, "build_timeout": 600.0}
    endless_import = Candidate(BUILDS + (BAD / "endless_import.py").read_text())
    verdict = quick_judge.judge(TASK, endless_import, **limits)
    assert (verdict.status, verdict.reason) == (
        Status.TIMED_OUT,
        "building: took more than 2 s and was killed",
    )
    options = Options(effort="quick", baselines=("eager_fp32",), **limits)  # type: ignore[arg-type]
    for name in ("endless_native.py", "endless_constructor.py"):
        profiled = worker.run(
            Job("profile", "profile", TASK, Candidate.from_file(BAD / name), "cpu", options)
        )
        assert "took more than 2 s and was killed" in (profiled.error or "")
    tuned = worker.run(Job("tune", "judge", TASK, Candidate(ENDLESS_POINT), "cpu", options, tune_points=2))
    assert tuned.verdict and tuned.verdict.status is Status.PASSED, tuned
    assert tuned.data.tuning.points[0].status is Status.TIMED_OUT  # type: ignore[union-attr]
