"""Where a candidate's parameters get their values, judged for real, and how states are compared."""

from __future__ import annotations

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.tasks import parameters
from kernelpro.records import Candidate, Status, Task

SCALED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)
    def forward(self, x): return self.second(torch.relu(self.first(x))) * 0.37
def get_inputs(): return [torch.randn(128, 64)]
def get_init_inputs(): return []
"""
FOLDED = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)
        with torch.no_grad():
            self.second.weight *= 0.37
            self.second.bias *= FACTOR
    def forward(self, x): return self.second(torch.relu(self.first(x)))
"""
OTHER_ORDER = SCALED.replace("Model", "ModelNew").replace(
    "self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)",
    "self.second, self.first = torch.nn.Linear(96, 64), torch.nn.Linear(64, 96)",
)


@pytest.mark.parametrize(
    ("source", "status", "origin"),
    [
        (FOLDED.replace("FACTOR", "0.37"), Status.PASSED, "by seed"),
        (FOLDED.replace("FACTOR", "1.0"), Status.WRONG, "by name"),
        (OTHER_ORDER, Status.PASSED, "by name"),
    ],
)
def test_weights_changed_in_a_constructor(
    quick_judge: QuickJudge, source: str, status: Status, origin: str
) -> None:
    verdict = quick_judge.judge(Task(SCALED), Candidate(source))
    assert (verdict.status, verdict.parameters) == (status, origin), verdict.reason


def test_checksums_tell_values_and_their_order_apart() -> None:
    tensor = torch.randn(300, 70)
    same = parameters.checksum(tensor)
    assert same == parameters.checksum(tensor.T.contiguous().T)
    for other in (tensor.flip(0), tensor.flip(1), tensor * 1.0000001, tensor[:, torch.randperm(70)]):
        assert parameters.checksum(other) != same
    small = torch.tensor([True, False, True])
    assert parameters.checksum(small) != parameters.checksum(small.flip(0).roll(1))


def test_large_constants_are_replaced_by_values_that_no_row_repeats() -> None:
    values = parameters.nonconstant_values(3, torch.empty(3000, 1000), 0.0)
    assert values.dtype == torch.float32 and len(torch.unique(values[:, 0])) > 2900
    assert len(torch.unique(values, dim=0)) == 3000
