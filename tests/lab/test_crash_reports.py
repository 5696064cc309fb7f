"""How a candidate ended is said so that its author knows what to do."""

from __future__ import annotations

import importlib.util

import pytest
from quick_judge import QuickJudge

from kernelpro.records import Candidate, Status, Task

TASK = Task(
    "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
    "def get_inputs(): return [torch.randn(64, 64)]\ndef get_init_inputs(): return []\n"
)
MODULE = """
import sys, torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {constructor}
    def forward(self, x):
        {forward}
{rest}
"""
TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def relu(x, y, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.maximum(tl.load(x + o), 0.0))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        relu[(16,)](x, y, 256)
        return y
"""


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("forward", "sys.exit(3)", "forward called sys.exit(3) (line 8"),
        ("forward", "sys.exit()", "forward called sys.exit()"),
        ("forward", "raise KeyboardInterrupt", "forward raised KeyboardInterrupt"),
        ("constructor", "sys.exit('enough')", "ModelNew() called sys.exit(enough)"),
        ("rest", "sys.exit(3)", "importing the candidate: called sys.exit(3)"),
        ("forward", "torch.ones(1 << 36)", "forward ran out of memory: tried to allocate 256.00 GiB (line 8"),
        ("forward", "[0] * (1 << 40)", "forward ran out of memory (line 8"),
    ],
)
def test_one_that_ends_the_process_or_asks_for_too_much_is_told_so(
    quick_judge: QuickJudge, place: str, code: str, words: str
) -> None:
    parts = {"constructor": "pass", "forward": "return torch.relu(x)", "rest": ""} | {place: code}
    verdict = quick_judge.judge(TASK, Candidate(MODULE.format(**parts)))
    assert verdict.status is Status.CRASHED and words in verdict.reason, verdict.reason


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")
def test_triton_on_the_cpu_is_told_where_to_go(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(TASK, Candidate(TRITON))
    assert verdict.status is Status.CRASHED and "Triton needs a GPU: use --target cuda" in verdict.reason, (
        verdict.reason
    )
