"""On a GPU: bad kernels are survived, identical code is not faster than itself, and float64 has two ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from quick_judge import QuickJudge

from kernelpro.lab.measure import oracle
from kernelpro.lab.measure.device_memory import LIMIT_VARIABLE
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Candidate, Status, Task

pytestmark = pytest.mark.gpu
TASK = Task.from_file(Path(__file__).parent / "bad" / "task.py")
EXAMPLES = Path(__file__).parents[1] / "examples" / "gpu"

KERNEL = """
import torch
from kernelpro import runtime
lib = runtime.cuda(r'''
__global__ void work(const float* x, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {body}
}}
extern "C" int go(const float* x, float* y, int n, cudaStream_t s) {{
    work<<<(n + 255) / 256, 256, 0, s>>>(x, y, n);
    return cudaGetLastError();
}}
''')
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.go(x, y, x.numel())
        return y
"""
LARGE_ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x / x.norm(dim=1, keepdim=True)
def get_inputs():
    return [torch.rand(16384, 16384)]
def get_init_inputs():
    return []
"""
CONVOLUTION = """
import torch
class Model(torch.nn.Conv2d):
    def __init__(self):
        super().__init__(8, 16, 3, padding=1)
def get_inputs():
    return [torch.randn(4, 8, 32, 32)]
def get_init_inputs():
    return []
"""
LINEAR = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(1024, 40000), torch.nn.Linear(40000, 64)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
def get_inputs():
    return [torch.randn(512, 1024)]
def get_init_inputs():
    return []
"""
# its parameters have no values of their own, and one lies in memory in another order
OWN_MEMORY = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Module(), torch.nn.Module()
        self.first.weight = torch.nn.Parameter(torch.empty(40000, 1024))
        self.first.bias = torch.nn.Parameter(torch.empty(40000))
        self.second.weight = torch.nn.Parameter(torch.empty(40000, 64).t())
        self.second.bias = torch.nn.Parameter(torch.empty(64))
    def forward(self, x):
        hidden = torch.relu(torch.nn.functional.linear(x, self.first.weight, self.first.bias))
        return torch.nn.functional.linear(hidden, self.second.weight, self.second.bias)
"""
HONEST = "if (i < n) y[i] = tanhf(2 * x[i] + 1);"


def judged(quick_judge: QuickJudge, body: str, **options: object) -> tuple[Status, str]:
    verdict = quick_judge.judge(TASK, Candidate(KERNEL.format(body=body)), "cuda", **options)  # type: ignore[arg-type]
    return verdict.status, verdict.reason


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("y[i + (1ll << 40)] = 1;", Status.CRASHED, "illegal memory access"),
        ("if (i < n) y[i] = x[i]; while (true) __nanosleep(1000);", Status.TIMED_OUT, "killed"),
        ('asm("trap;");', Status.CRASHED, ""),
    ],
)
def test_a_bad_kernel_is_survived(body: str, status: Status, reason: str, quick_judge: QuickJudge) -> None:
    assert judged(quick_judge, HONEST)[0] is Status.PASSED
    found, why = judged(quick_judge, body, build_timeout=300.0)
    assert found is status and reason in why, why
    assert judged(quick_judge, HONEST)[0] is Status.PASSED


@pytest.mark.parametrize("name", ["matmul", "gelu_bias"])
def test_identical_code_is_not_faster_than_itself(name: str, quick_judge: QuickJudge) -> None:
    path = EXAMPLES / name / "task.py"
    itself = Candidate(re.sub(r"\bModel\b", "ModelNew", path.read_text()))
    verdict = quick_judge.judge(
        Task.from_file(path), itself, "cuda", effort="full", baselines=("eager_tf32",)
    )
    assert verdict.status is Status.PASSED, verdict.reason
    ratio = verdict.speedup["eager_tf32"]
    assert ratio.low <= 1 <= ratio.high
    assert ratio.high - ratio.low < 0.02


def test_calls_are_right_where_candidate_and_baselines_share_their_inputs(
    quick_judge: QuickJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "8")
    verdict = quick_judge.judge(Task(LARGE_ROWS), Candidate(LARGE_ROWS.replace("Model", "ModelNew")), "cuda")
    assert verdict.status is Status.PASSED, verdict.reason
    assert any("candidate and baselines take turns" in note for note in verdict.notes), verdict.notes


def test_the_oracle_is_the_same_with_and_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "_WORTH_SECONDS", 0.0)
    made = oracle.Oracle(Reference(Task(CONVOLUTION), "cuda", 1), 1 << 26)
    answers = [made.compute(*made.inputs(1))[0] for _ in range(6)]
    assert all(len(took) >= 2 for took in made._float64_seconds.values()), "each way was tried"
    assert all((answer - answers[0]).norm() < 1e-12 * answers[0].norm() for answer in answers)


def test_parameters_arrive_in_pieces(quick_judge: QuickJudge) -> None:
    """160 MB reach the processes of the timed and of the guarded calls through inputs of 2 MB."""
    verdict = quick_judge.judge(Task(LINEAR), Candidate(OWN_MEMORY), "cuda")
    assert verdict.status is Status.PASSED, verdict.reason
    assert not [note for note in verdict.notes if "out of bounds" in note or "parameters" in note]
