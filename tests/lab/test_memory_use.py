"""Who is blamed when memory runs out, with which figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernelpro.lab.judge.memory_use import MemoryUse
from kernelpro.lab.measure.memory_plan import GB, CandidateNeedsMemory, Layout, MemoryPlan
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.records import BadInput, Status

pytestmark = pytest.mark.together
PLAN = MemoryPlan(Layout(2, 2), 150 * GB, 120 * GB, 0, 0, retained_bytes=4 * GB)
"""120 GB for the candidate; outputs that it keeps for the judge are not charged to it."""
CHILD = "forward raised OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 GiB.\nGPU 0 has more"


def blame(error: Exception, taken_gb: float, plan: MemoryPlan = PLAN) -> None:
    """Raise what follows from an error after the candidate has taken so much."""
    in_use = [7 * GB]
    use = MemoryUse(plan, lambda: in_use[0])
    with use.blaming():
        in_use[0] += int(taken_gb * GB) + PLAN.retained_bytes
        raise error


def test_a_candidate_that_asks_for_more_than_its_share_gets_the_figures() -> None:
    with pytest.raises(CandidateRejected) as caught:
        blame(CandidateRejected(Status.CRASHED, CHILD), 96.1)
    assert caught.value.status is Status.CRASHED
    figures = "it had allocated 96.1 GB of the 120.0 GB that were free for it, and asked for 42.9 GB more"
    assert caught.value.reason.endswith(figures) and "\n" not in caught.value.reason


def test_a_candidate_whose_share_was_not_there_is_not_blamed() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="the plan left too little memory for the candidate"):
        blame(CandidateRejected(Status.CRASHED, CHILD), 10)


def test_a_library_without_memory_for_itself_is_not_blamed_on_the_candidate() -> None:
    reason = "forward raised RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    with pytest.raises(torch.OutOfMemoryError, match="the plan left too little memory"):
        blame(CandidateRejected(Status.CRASHED, reason), 10)
    with pytest.raises(CandidateRejected, match=r"it had allocated 130\.0 GB of the 120\.0 GB"):
        blame(CandidateRejected(Status.CRASHED, reason), 130)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), BadInput("x: out of memory")]
)
def test_where_judge_or_baseline_run_out_the_share_decides(error: Exception) -> None:
    with pytest.raises(
        CandidateRejected, match=r"it allocated 130\.0 GB of the 120\.0 GB that were free for it;"
    ):
        blame(error, 130)
    with pytest.raises(torch.OutOfMemoryError):
        blame(error, 60)


@pytest.mark.parametrize(
    ("error", "needed"),
    [(CandidateRejected(Status.CRASHED, CHILD), 130 + 42.9), (torch.OutOfMemoryError("out of memory"), 130)],
)
def test_where_another_plan_leaves_enough_it_is_tried_first(error: Exception, needed: float) -> None:
    with pytest.raises(CandidateNeedsMemory) as caught:
        blame(error, 130, replace(PLAN, most_candidate_bytes=180 * GB))
    assert needed < caught.value.nbytes / GB < 1.3 * needed


def test_a_candidate_that_fits_into_no_plan_is_rejected_at_once() -> None:
    with pytest.raises(CandidateRejected, match=r"of the 120\.0 GB that were free for it"):
        blame(CandidateRejected(Status.CRASHED, CHILD), 130, replace(PLAN, most_candidate_bytes=140 * GB))


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(CandidateRejected, match=r"^wrong$"):
        blame(CandidateRejected(Status.WRONG, "wrong"), 200)
    with pytest.raises(BadInput, match=r"^throttled$"):
        blame(BadInput("throttled"), 200)
