"""On a GPU: bad kernels are survived, and identical code is not faster than itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from court import Court

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
HONEST = "if (i < n) y[i] = tanhf(2 * x[i] + 1);"


def judged(court: Court, body: str, **options: object) -> tuple[Status, str]:
    verdict = court.judge(TASK, Candidate(KERNEL.format(body=body)), "cuda", **options)  # type: ignore[arg-type]
    return verdict.status, verdict.reason


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("y[i + (1ll << 40)] = 1;", Status.CRASHED, "illegal memory access"),
        ("if (i < n) y[i] = x[i]; while (true) __nanosleep(1000);", Status.TIMED_OUT, "killed"),
        ('asm("trap;");', Status.CRASHED, ""),
    ],
)
def test_a_bad_kernel_is_survived(body: str, status: Status, reason: str, court: Court) -> None:
    assert judged(court, HONEST)[0] is Status.PASSED
    found, why = judged(court, body, build_timeout=15.0)
    assert found is status and reason in why, why
    assert judged(court, HONEST)[0] is Status.PASSED


@pytest.mark.parametrize("name", ["matmul", "gelu_bias"])
def test_identical_code_is_not_faster_than_itself(name: str, court: Court) -> None:
    path = EXAMPLES / name / "task.py"
    itself = Candidate(re.sub(r"\bModel\b", "ModelNew", path.read_text()))
    verdict = court.judge(Task.from_file(path), itself, "cuda", effort="full", baselines=("eager_tf32",))
    assert verdict.status is Status.PASSED, verdict.reason
    ratio = verdict.speedup["eager_tf32"]
    assert ratio.low <= 1 <= ratio.high
    assert ratio.high - ratio.low < 0.02
