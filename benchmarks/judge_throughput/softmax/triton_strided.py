"""A fixed number of programs, each of which strides over the rows."""

import torch
import triton
import triton.language as tl
from torch import nn

PROGRAMS = 1056


@triton.jit
def softmax_strided(x, y, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        place = row.to(tl.int64) * columns + at
        v = tl.load(x + place, mask=at < columns, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(y + place, e / tl.sum(e, axis=0), mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        softmax_strided[(PROGRAMS,)](x, y, rows, columns, BLOCK=triton.next_power_of_2(columns), num_warps=8)
        return y
