"""A device whose memory runs out: who is to blame, and how the oracle goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.judge.tolerance import Tolerance
from kernelpro.lab.measure.errors import Errors
from kernelpro.lab.measure.oracle import Oracle
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import BadInput, Status, Task

BAD = Path(__file__).parents[1] / "bad"
pytestmark = pytest.mark.together


def test_memory_that_the_judge_lacks_is_not_charged_to_the_candidate(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    measure = Tolerance.measure

    def full_at_first(*arguments: Any) -> Errors:
        calls.append(1)
        if len(calls) <= full_calls:
            raise torch.OutOfMemoryError
        return measure(*arguments)

    full_calls = 1
    assert quick_judge.judge_files(BAD / "task.py", BAD / "good.py").status is Status.PASSED
    with monkeypatch.context() as patched:
        patched.setattr(Tolerance, "measure", full_at_first)  # a CPU's memory does not end in this way
        verdict = quick_judge.judge_files(BAD / "task.py", BAD / "good.py")
        assert verdict.status is Status.PASSED, "a smaller plan succeeds"
        full_calls = 10**9
        with pytest.raises(AssertionError, match="too little memory to judge it; no candidate is to blame"):
            quick_judge.judge_files(BAD / "task.py", BAD / "good.py")
    assert quick_judge.judge_files(BAD / "task.py", BAD / "good.py").status is Status.PASSED


GIVES_UP = """
import torch
CALLS = []

class Model(torch.nn.Module):
    def forward(self, x):
        CALLS.append(x.dtype)
        if len(CALLS) > {first} and x.dtype is torch.float64:
            raise RuntimeError("{why}")
        return x.tanh()

def get_inputs():
    return [torch.rand(64)]

def get_init_inputs():
    return []
"""


def test_the_oracle_is_less_exact_only_if_it_was_so_from_the_start() -> None:
    def oracle(first: int, why: str = "DefaultCPUAllocator: can't allocate memory") -> Oracle:
        source = GIVES_UP.replace("{first}", str(first)).replace("{why}", why)
        return Oracle(Reference(Task(source, "gives up"), "cpu", 1), 1 << 20)

    never, later = oracle(0), oracle(1)
    assert never.truth(1) and not never.exact
    assert later.truth(1) and later.exact
    with pytest.raises(torch.OutOfMemoryError):
        later.truth(2)
    assert later.exact
    singular = oracle(1, "the matrix is singular")
    assert singular.truth(1)
    with pytest.raises(
        BadInput, match="task gives up: the reference raised RuntimeError: the matrix is singular"
    ):
        singular.truth(2)
