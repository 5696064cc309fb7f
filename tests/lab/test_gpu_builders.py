"""The ways in which users build CUDA kernels without `kernelpro.runtime`, on a GPU."""

from __future__ import annotations

import importlib.util

import pytest
from quick_judge import QuickJudge

from kernelpro.lab.jobs import JobRunner
from kernelpro.lab.languages.torch import missing
from kernelpro.records import Candidate, Job, Options, ProfileRequest, Status, Task

pytestmark = pytest.mark.gpu

TASK = Task(
    "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.tanh(2 * x + 1)\n"
    "def get_inputs(): return [torch.randn(1024, 1024)]\ndef get_init_inputs(): return []\n"
)
KERNEL = """
extern "C" __global__ void own_tanh(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = tanhf(2 * x[i] + 1);
}
"""
ENDLESS = KERNEL.replace("if (i < n)", "while (true) __nanosleep(1000);\n    if (i < n)")
MODEL = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = None
    def forward(self, x):
        y = torch.empty_like(x)
        BODY
        return y
"""
NVRTC = "import torch\nkernel = torch.cuda._compile_kernel(SOURCE, 'own_tanh')\n" + MODEL.replace(
    "BODY",
    "kernel(grid=((x.numel() + 255) // 256, 1, 1), block=(256, 1, 1), args=[x, y, x.numel()])",
)
CUPY = "import cupy, torch\nkernel = cupy.RawKernel(SOURCE, 'own_tanh')\n" + MODEL.replace(
    "BODY",
    "with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):\n"
    "            kernel(((x.numel() + 255) // 256,), (256,), (x.data_ptr(), y.data_ptr(), cupy.int32(x.numel())))",
)
INLINE = """
def build():
    from torch.utils.cpp_extension import load_inline
    launcher = '''
torch::Tensor apply(torch::Tensor x) {
    auto y = torch::empty_like(x);
    own_tanh<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}'''
    return load_inline("own", "torch::Tensor apply(torch::Tensor x);", SOURCE + launcher, functions=["apply"])
""" + MODEL.replace(
    "BODY", "self.extension = self.extension or build()\n        return self.extension.apply(x)"
)


def candidate(text: str, kernel: str = KERNEL) -> Candidate:
    return Candidate(f"SOURCE = {kernel!r}\n{text}")


def test_nvrtc_through_torch(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(TASK, candidate(NVRTC), "cuda")
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.own_share and verdict.own_share > 0.9


@pytest.mark.skipif(not importlib.util.find_spec("cupy"), reason="CuPy is not installed")
def test_raw_kernels_of_cupy(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(TASK, candidate(CUPY), "cuda")
    assert verdict.status is Status.PASSED, verdict.reason


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_an_extension_that_forward_builds_is_built_ahead_and_profiled(
    quick_judge: QuickJudge, worker: JobRunner
) -> None:
    verdict = quick_judge.judge(TASK, candidate(INLINE), "cuda", build_timeout=300.0)
    assert verdict.status is Status.PASSED, verdict.reason
    assert not [note for note in verdict.notes if note.startswith("compilers ran")]
    request = ProfileRequest(metrics=("launch__registers_per_thread",))
    job = Job("profile", "profile", TASK, candidate(INLINE), "cuda", Options(), profile_request=request)
    profile = worker.run(job).profile
    assert profile and profile.kernels[0].authored and profile.kernels[0].code


def test_a_kernel_without_end_is_killed_after_the_time_of_a_call(quick_judge: QuickJudge) -> None:
    verdict = quick_judge.judge(
        TASK, candidate(NVRTC, ENDLESS), "cuda", call_timeout=5.0, build_timeout=600.0
    )
    assert verdict.status is Status.TIMED_OUT and "took more than 5 s" in verdict.reason, verdict.reason
    assert quick_judge.judge(TASK, candidate(NVRTC), "cuda").status is Status.PASSED
