"""The local pool, and the Python API on top of it."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import kernelpro
from kernelpro.pools import local
from kernelpro.records import Candidate, Job, Options, Progress, Status, Task

BAD = Path(__file__).parents[1] / "bad"
QUICK = Options(effort="quick", baselines=("eager_fp32",))


def my_workers() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"kernelpro.lab.worker" in command and int(stat.rpartition(")")[2].split()[1]) == os.getpid():
            found.append(int(folder.name))
    return found


SEARCHES_ITS_MEMORY = r"""
import re, torch

def parts():
    yield open("/proc/self/environ", "rb").read()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            start, end = (int(word, 16) for word in span.split("-"))
            if rights.startswith("rw") and end - start < 64 << 20:
                memory.seek(start)
                yield memory.read(end - start)

FOUND = sum(len(re.findall(rb"key-of-the-pool-[0-9]{8}", part)) for part in parts())

class ModelNew(torch.nn.Module):
    def forward(self, x):
        if FOUND:
            raise RuntimeError("a key")
        return torch.tanh(2 * x + 1)
"""


def test_a_worker_that_is_killed_takes_only_its_own_job_and_no_candidate_finds_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # in /tmp others may be at work
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SOME_API_KEY", "key-of-the-pool-12345678")
    task, good = Task.from_file(BAD / "task.py"), Candidate.from_file(BAD / "good.py")
    jobs = [Job(str(i), "judge", task, good, "cpu", QUICK) for i in range(2)]
    curious = Candidate(SEARCHES_ITS_MEMORY, "curious")
    jobs.append(Job("2", "judge", task, curious, "cpu", replace(QUICK, disabled_tripwires=("all",))))

    def progress(step: Progress) -> None:
        if (step.job, step.stage) == ("0", "verifying"):
            for pid in my_workers():
                os.kill(pid, signal.SIGKILL)

    results = list(local.run_locally(jobs, progress))
    assert [path.name for path in tmp_path.glob("kernelpro-*")] in ([], ["kernelpro-locks"])
    assert [r.job for r in results] == ["0", "1", "2"]
    assert (
        results[0].verdict
        and results[0].verdict.status is Status.CRASHED
        and "SIGKILL" in results[0].verdict.reason
    )
    for result in results[1:]:
        assert result.verdict and result.verdict.status is Status.PASSED, result
    assert not my_workers()


class Scaled(nn.Module):
    """A module of one's own, with parameters that training would have set."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * self.weight + self.bias)


def softplus_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(x) + y


HONEST = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))
        self.bias = torch.nn.Parameter(torch.empty(size))
    def forward(self, x):
        return torch.addcmul(self.bias, x, self.weight).tanh_()
"""


@pytest.mark.long  # tests/test_api.py has a module, and tests/suites/test_bench.py a whole run of one
def test_a_module_with_example_inputs_is_a_task() -> None:
    drops_bias = HONEST.replace("torch.addcmul(self.bias, x, self.weight)", "(x * self.weight)")
    candidates = [Candidate(HONEST, "honest"), Candidate(drops_bias, "drops the bias")]
    inputs = [torch.randn(64, 128)]
    right, wrong = kernelpro.judge(
        Scaled(128), candidates, inputs, init_inputs=[128], target="cpu", options=QUICK
    )
    assert (right.status, right.parameters) == (Status.PASSED, "by name"), right.reason
    assert wrong.status is Status.WRONG, "a bias of zeros is not left at zero"


@pytest.mark.long  # a module goes the same way; engine/test_exported_guard.py makes a task of a function
def test_a_function_is_a_task() -> None:
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, y):\n        return torch.logaddexp(x, torch.zeros_like(x)) + y"
    inputs = [torch.randn(64, 128), torch.rand(64, 128)]
    (verdict,) = kernelpro.judge(softplus_sum, Candidate(source), inputs, target="cpu", options=QUICK)
    assert verdict.status is Status.PASSED, verdict.reason
