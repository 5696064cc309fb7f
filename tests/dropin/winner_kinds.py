"""Winners of each kind for one layer: written in C++, Triton and CUDA, and by torch.compile."""

from __future__ import annotations

import functools
from typing import Any

import torch
from two_files.layers import RootNorm

from kernelpro import api
from kernelpro.dropin.module import optimize_module
from kernelpro.engine.export import Winner
from kernelpro.lab.seeds import seed_source
from kernelpro.lab.tasks.reference import Reference
from kernelpro.pools import winners

WIDTH, ROWS = 512, (64, 24)
"""The second shape has other rows."""
_MODEL = """

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(width))

    def forward(self, x):
        y = torch.empty_like(x)
        CALL
        return y
"""
_CPP = '''import torch
from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
extern "C" int root_norm(const float* x, const float* w, float* y, long long rows, long long width) {
    for (long long row = 0; row < rows; ++row, x += width, y += width) {
        float sum = 0;
        for (long long i = 0; i < width; ++i) sum += x[i] * x[i];
        const float scale = 1 / std::sqrt(sum / width + 1e-6f);
        for (long long i = 0; i < width; ++i) y[i] = x[i] * scale * w[i];
    }
    return 0;
}
""")
'''
_CUDA = '''import torch
from kernelpro import runtime

lib = runtime.cuda(r"""
__global__ void norm_kernel(const float* x, const float* w, float* y, int width) {
    __shared__ float sums[256];
    x += size_t(blockIdx.x) * width, y += size_t(blockIdx.x) * width;
    float sum = 0;
    for (int i = threadIdx.x; i < width; i += 256) sum += x[i] * x[i];
    sums[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    const float scale = rsqrtf(sums[0] / width + 1e-6f);
    for (int i = threadIdx.x; i < width; i += 256) y[i] = x[i] * scale * w[i];
}
extern "C" int root_norm(const float* x, const float* w, float* y, int rows, int width, cudaStream_t stream) {
    norm_kernel<<<rows, 256, 0, stream>>>(x, w, y, width);
    return cudaGetLastError();
}
""")
'''
_TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def norm_kernel(x_ptr, w_ptr, y_ptr, width, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < width
    start = tl.program_id(0) * width
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0)
    w = tl.load(w_ptr + column, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + 1e-6)
    tl.store(y_ptr + start + column, x * scale * w, mask=inside)
"""
_CALL = "lib.root_norm(x, self.weight, y, x.shape[0], x.shape[1])"
_LAUNCH = "norm_kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], BLOCK=512)"
WRITTEN = {
    "cpp": _CPP + _MODEL.replace("CALL", _CALL),
    "cuda": _CUDA + _MODEL.replace("CALL", _CALL),
    "triton": _TRITON + _MODEL.replace("CALL", _LAUNCH),
}


def inputs(device: str, number: int = 0, rows: int | None = None) -> torch.Tensor:
    """New inputs of one of the two shapes, or with other rows."""
    return torch.randn(rows or ROWS[number], WIDTH, device=device)


@functools.cache
def winner(kind: str, device: str) -> Winner:
    """The winner for both shapes. The compiler's code is for one shape, so there are two of it."""
    examples = [(inputs("cpu", number),) for number in (0, 1)]
    task = api.load_task(RootNorm(WIDTH).eval(), examples).for_target(device)
    if kind == "compile":
        sources = tuple(seed_source(Reference(task.at(n), device, 0), "compile") for n in (0, 1))
        torch.compiler.reset()
    else:
        sources = (WRITTEN[kind],) * 2
    return Winner(task, sources[0], None, {"target": device}, sources)


@functools.cache
def _factories(kind: str, device: str) -> tuple[Any, ...]:
    best = winner(kind, device)
    specs = winners.describe_winner(best.task, best.sources, device, None)
    return tuple(winners.winner_factory(s, text, None) for s, text in zip(specs, best.sources, strict=True))


def optimized(kind: str, device: str, strict: bool = False) -> Any:
    """A new layer with the winner in front of it."""
    layer = RootNorm(WIDTH).eval().to(device)
    return optimize_module(layer, _factories(kind, device), strict)
