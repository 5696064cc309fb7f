"""Writes kernels that are right except for one store out of bounds: which buffer, which side, how far.

The task is a row-wise scaling with a parameter. The kernel copies the last row (or element, or megabyte) of a
buffer to the memory right behind it, or the first one to the memory right before it.
"""

from __future__ import annotations

TASK = """
import torch


class Model(torch.nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * self.weight + y


def get_inputs():
    return [torch.randn(64, 250), torch.randn(64, 250)]


def get_init_inputs():
    return [250]
"""
DIM = 250
REACHES = {"element": 1, "row": DIM, "megabyte": 1 << 18}
"""How many floats are written out of bounds."""
BUFFERS = {
    "output": "output 0",
    "input": "input 1",
    "parameter": "parameter weight",
    "scratch": "a scratch buffer",
}
"""The buffers, and the names that a verdict gives them."""

_MODEL = """
class ModelNew(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x, y):
        scratch = torch.empty_like(x)
        out = torch.empty_like(x)
        buffers = {{"output": out, "input": y, "parameter": self.weight, "scratch": scratch}}
        {call}
        return out
"""
_START = "(buffers[{buffer!r}].numel() if {after} else -{count})"

_CPP = '''
import torch
from kernelpro import runtime

lib = runtime.cpp(r"""
extern "C" int scale(const float* x, const float* w, const float* y, float* scratch, float* out, float* bad,
                     long start, long count) {
    for (long r = 0; r < 64; ++r)
        for (long j = 0; j < 250; ++j) scratch[r * 250 + j] = x[r * 250 + j] * w[j];
    for (long i = 0; i < 64 * 250; ++i) out[i] = scratch[i] + y[i];
    for (long i = 0; i < count; ++i) bad[start + i] STORE 1.5f + i;
    return 0;
}
""")
'''
_INLINE = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
#include <ATen/ops/empty_like.h>
at::Tensor scale(at::Tensor x, at::Tensor w, at::Tensor y, long which, long after, long count) {
    auto out = at::empty_like(x), scratch = at::empty_like(x);
    float *px = x.data_ptr<float>(), *pw = w.data_ptr<float>(), *py = y.data_ptr<float>();
    float *ps = scratch.data_ptr<float>(), *po = out.data_ptr<float>();
    for (long i = 0; i < 64 * 250; ++i) po[i] = (ps[i] = px[i] * pw[i % 250]) + py[i];
    float* bad = which == 0 ? po : which == 1 ? py : which == 2 ? pw : ps;
    const long size = which == 2 ? 250 : 64 * 250;
    for (long i = 0; i < count; ++i) bad[(after ? size : -count) + i] STORE 1.5f + i;
    return out;
}
"""
extension = load_inline("faulty_scale", SOURCE, functions=["scale"], extra_cflags=["-O1"], no_implicit_headers=True)
'''
_CUDA_KERNEL = """
__global__ void scale_kernel(const float* x, const float* w, const float* y, float* scratch, float* out,
                             float* bad, long start, long count) {
    for (long i = blockIdx.x * blockDim.x + threadIdx.x; i < 64 * 250; i += gridDim.x * blockDim.x)
        out[i] = (scratch[i] = x[i] * w[i % 250]) + y[i];
    for (long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        bad[start + i] STORE 1.5f + i;
}"""
_INLINE_CUDA = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <ATen/ops/empty_like.h>
KERNEL
at::Tensor scale(at::Tensor x, at::Tensor w, at::Tensor y, long which, long after, long count) {
    auto out = at::empty_like(x), scratch = at::empty_like(x);
    at::Tensor bad = which == 0 ? out : which == 1 ? y : which == 2 ? w : scratch;
    scale_kernel<<<32, 256>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), scratch.data_ptr<float>(),
        out.data_ptr<float>(), bad.data_ptr<float>(), after ? bad.numel() : -count, count);
    return out;
}
"""
DECLARATION = """
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
at::Tensor scale(at::Tensor x, at::Tensor w, at::Tensor y, long which, long after, long count);
"""
extension = load_inline("faulty_scale_cuda", DECLARATION, SOURCE, functions=["scale"], no_implicit_headers=True)
'''.replace("KERNEL", _CUDA_KERNEL)
_PYTHON = """
import ctypes
import numpy as np
import torch


def store(tensor, start, count):
    address = tensor.data_ptr() + 4 * start
    np.ctypeslib.as_array((ctypes.c_float * max(count, 1)).from_address(address))[:count] STORE 1.5
"""
_CUDA = '''
import torch
from kernelpro import runtime

lib = runtime.cuda(r"""
KERNEL
extern "C" int scale(const float* x, const float* w, const float* y, float* scratch, float* out, float* bad,
                     long start, long count, cudaStream_t stream) {
    scale_kernel<<<32, 256, 0, stream>>>(x, w, y, scratch, out, bad, start, count);
    return cudaGetLastError();
}
""")
'''.replace("KERNEL", _CUDA_KERNEL)
_TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, w, y, scratch, out, bad, start, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < 64 * 250
    product = tl.load(x + at, inside) * tl.load(w + at % 250, inside)
    tl.store(scratch + at, product, inside)
    tl.store(out + at, product + tl.load(y + at, inside), inside)
    bad += start + at
    tl.store(bad, SUM 1.5 + at, at < count)
"""
_NATIVE_CALL = "lib.scale(x, self.weight, y, scratch, out, buffers[{buffer!r}], {start}, {count})"
_INLINE_CALL = "out = extension.scale(x, self.weight, y, {index}, {after}, {count})"
_LANGUAGES = {
    "cpp": (_CPP, _NATIVE_CALL),
    "cuda": (_CUDA, _NATIVE_CALL),
    "load_inline": (_INLINE, _INLINE_CALL),
    "load_inline_cuda": (_INLINE_CUDA, _INLINE_CALL),
    "python": (
        _PYTHON,
        "torch.mul(x, self.weight, out=scratch); torch.add(scratch, y, out=out); "
        "store(buffers[{buffer!r}], {start}, {count})",
    ),
    "triton": (
        _TRITON,
        "scale_kernel[(256,)](x, self.weight, y, scratch, out, buffers[{buffer!r}], {start}, {count}, BLOCK=1024)",
    ),
}


def write_kernel(language: str, buffer: str, side: str, count: int, adds: bool = False) -> str:
    """The source of a candidate that writes `count` floats before or after a buffer, or adds to them."""
    prelude, call = _LANGUAGES[language]
    after = int(side == "after")
    start = _START.format(buffer=buffer, after=after, count=count)
    index = list(BUFFERS).index(buffer)
    filled = call.format(buffer=buffer, after=after, start=start, count=count, index=index)
    prelude = prelude.replace("STORE", "+=" if adds else "=")
    prelude = prelude.replace("SUM", "tl.load(bad, at < count) +" if adds else "")
    return prelude + _MODEL.format(call=filled)
