"""Judging with little memory, in real processes: comfort is given up, wrong kernels are still wrong."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from quick_judge import QuickJudge

from kernelpro.lab.measure import physics
from kernelpro.lab.measure.device_memory import LIMIT_VARIABLE
from kernelpro.lab.measure.memory_plan import GB, TaskSizes, plan_memory
from kernelpro.lab.measure.participant import Flusher
from kernelpro.records import BadInput, Candidate, Status, Task

TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}
def get_inputs():
    return [torch.rand(1024, 1024)]
def get_init_inputs():
    return []
"""
ROWS, COLUMNS = "x / x.norm(dim=1, keepdim=True)", "x.softmax(0)"
KERNEL = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return "
TENSOR = 1024 * 1024 * 4


def smallest_gb() -> float:
    """The least memory with which the task is judged."""
    flush = Flusher("cpu", physics.last_level_cache()).nbytes
    sizes = TaskSizes(TENSOR, TENSOR, 0, 2 * TENSOR, 4 * TENSOR)
    for free in itertools.count(0, 1_000_000):
        with contextlib.suppress(BadInput):
            plan_memory("", sizes, free, "cpu", flush, sliceable=False)
            return free / GB
    raise AssertionError


@pytest.mark.parametrize(
    ("expression", "tensors", "given_up"),
    [
        (ROWS, 4, "the oracle computes"),
        (COLUMNS, 2, "candidate and baselines take turns in it, the oracle runs in the task's own type"),
    ],
)
def test_little_memory_costs_comfort_and_no_check(
    expression: str,
    tensors: int,
    given_up: str,
    quick_judge: QuickJudge,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, f"{smallest_gb() + tensors * TENSOR / GB:.3f}")
    task = Task(TASK.format(expression=expression))
    verdict = quick_judge.judge(task, Candidate(KERNEL + expression))
    assert verdict.status is Status.PASSED, verdict.reason
    assert any(given_up in note for note in verdict.notes), verdict.notes
    late = Candidate(KERNEL + f"({expression}).index_fill_(0, torch.tensor([1023]), 0.0)")
    verdict = quick_judge.judge(task, late)
    assert verdict.status is Status.WRONG and "[1023, " in verdict.reason, verdict.reason


def test_a_task_that_does_not_fit_says_what_it_needs(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, f"{smallest_gb() - 3 * TENSOR / GB:.3f}")
    task = Task(TASK.format(expression=ROWS) + "# too large", name="norm")
    with pytest.raises(
        AssertionError, match=r"task norm: judging it needs 1\.\d GB of memory, and 1\.\d GB of"
    ):
        quick_judge.judge(task, Candidate(KERNEL + ROWS))
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(AssertionError, match="give a number of gigabytes"):
        quick_judge.judge(task, Candidate(KERNEL + ROWS))
