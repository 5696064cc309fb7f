"""Row-wise cumulative sum: a program scans a whole row with tl.cumsum, so memory is read once."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cumsum_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * cols
    x = tl.load(x_ptr + start + column, mask=column < cols, other=0.0)
    tl.store(y_ptr + start + column, tl.cumsum(x, axis=0), mask=column < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cumsum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=16)
        return y
