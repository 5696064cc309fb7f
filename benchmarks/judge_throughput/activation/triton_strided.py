"""A fixed number of programs, each of which strides over the tensor."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice

PROGRAMS = 1056


@triton.jit
def activation_strided(x, y, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < n)
        gate = 1.0 / (1.0 + tl.exp(-1.702 * v))
        tl.store(y + at, tl.maximum(v, 0.0) * gate + 0.1 * libdevice.tanh(v), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        activation_strided[(PROGRAMS,)](x, y, x.numel(), BLOCK=2048, num_warps=8)
        return y
