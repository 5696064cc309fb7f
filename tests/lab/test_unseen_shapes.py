"""Verdicts on several shapes, and on a batch size that no task names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quick_judge import QuickJudge

from kernelpro.lab.tasks.batches import find_resizing, other_batch
from kernelpro.records import Candidate, Shape, Status, Task, Verdict

TASK = Task(
    """
import torch
rows = 32
class Model(torch.nn.Module):
    def forward(self, x): return torch.tanh(x) + x
def get_inputs(): return [torch.randn(rows, 256)]
def get_init_inputs(): return []
""",
    "several",
)
KERNEL = """
import torch
from kernelpro import runtime
lib = runtime.cpp(r'''
#include <cmath>
extern "C" void run(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = std::tanh(x[i]) + x[i];
}
''')
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.run(x, y, SIZE)
        return y
"""


def verdict(judge: QuickJudge, size: str, *rows: int) -> Verdict:
    shapes = tuple(Shape(weight, {"rows": n}) for weight, n in zip((3.0, 1.0), rows, strict=False))
    task = replace(TASK, shapes=shapes or TASK.shapes)
    return judge.judge(task, Candidate(KERNEL.replace("SIZE", size)))


def test_a_candidate_passes_if_it_passes_on_every_shape(quick_judge: QuickJudge) -> None:
    result = verdict(quick_judge, "x.numel()", 32, 128)
    assert result.status is Status.PASSED, result.reason
    assert [(s.shape, s.weight) for s in result.shapes] == [("32x256", 0.75), ("128x256", 0.25)]
    small, large = (s.times["candidate"].value for s in result.shapes)
    assert result.times["candidate"].value == pytest.approx(0.75 * small + 0.25 * large)
    assert "over all 2 shapes" in result.reason
    assert result.unseen_shape and result.unseen_shape.passed and result.unseen_shape.batch in (23, 95)
    fixed = verdict(quick_judge, "32 * 256", 32, 128)
    assert fixed.status is Status.WRONG and fixed.reason.startswith("on shape 2: ") and not fixed.times


def test_a_hard_coded_size_is_reported_and_is_no_fault(quick_judge: QuickJudge) -> None:
    result = verdict(quick_judge, "32 * 256")
    assert result.status is Status.PASSED, result.reason
    unseen = result.unseen_shape
    assert unseen and not unseen.passed and (unseen.batch, unseen.shape) == (23, "23x256")
    assert "out of bounds" in unseen.reason
    assert len(result.shapes) == 1 and result.shapes[0].times == result.times


def test_another_batch_size_fits_no_tile() -> None:
    assert [other_batch(n) for n in (1, 2, 3, 8, 24, 32, 1024)] == [2, 1, 2, 5, 17, 23, 767]


def test_a_product_is_resized_in_its_left_matrix_alone() -> None:
    square = [torch.randn(8, 8), torch.randn(8, 8)]
    found = find_resizing(lambda leaves: [leaves[0] @ leaves[1]], square)
    assert found and found.is_resized == (True, False)
    assert find_resizing(lambda leaves: [leaves[0].sum()], square) is None, "no output depends on it"


def test_a_reference_that_keeps_its_batch_size_is_left_alone() -> None:
    first: list[int] = []

    def refuse(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        first.append(len(leaves[0]))
        if len(leaves[0]) != first[0] or len(set(first)) > 1:
            raise ValueError("another batch size before")
        return leaves

    assert find_resizing(refuse, [torch.randn(8, 4)]) is None
