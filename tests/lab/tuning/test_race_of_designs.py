"""A race between designs in one process: wrong and broken ones leave it, and times are relative to the
fastest."""

from __future__ import annotations

import pytest

from kernelpro.lab.jobs import JobRunner
from kernelpro.records import Candidate, Job, Options, RaceData, Status, Task

TASK = Task(
    """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(256))

    def forward(self, x):
        return torch.tanh(x) * self.scale

def get_inputs():
    return [torch.randn(512, 256)]

def get_init_inputs():
    return []
""",
    "scaled",
)


def design(body: str) -> Candidate:
    return Candidate(TASK.source.replace("Model(", "ModelNew(").replace("torch.tanh(x) * self.scale", body))


@pytest.fixture
def data(worker: JobRunner) -> RaceData:
    designs = (
        design("[torch.tanh(x) for _ in range(200)][0] * self.scale"),
        design("torch.tanh(x)"),
        design("torch.tanh(x).mul_(self.scale)"),
        design("__import__('os')._exit(3)"),
        design("[torch.tanh(x) for _ in range(10)][0] * self.scale"),
    )
    job = Job(
        "r",
        "race",
        TASK,
        target="cpu",
        options=Options(effort="quick", baselines=("eager_fp32",)),
        candidates=designs,
    )
    result = worker.run(job)
    assert isinstance(result.data, RaceData), result.error
    return result.data


def test_the_fastest_design_that_is_right_has_a_ratio_of_one(data: RaceData) -> None:
    slow, wrong, fast, crashed, late = data.designs
    assert fast.ratio == 1 and slow.ratio and late.ratio
    assert slow.ratio > late.ratio > 2, "relative to the fastest, whenever they ran"
    assert wrong.status is Status.WRONG and "on inputs as given" in wrong.reason
    assert crashed.status is Status.CRASHED and late.status is Status.PASSED, "the next one has a new process"
    assert wrong.ratio is None and crashed.ratio is None
