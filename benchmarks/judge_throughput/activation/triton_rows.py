"""A program for a part of a row: rows along one side of the grid, columns along the other."""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice


@triton.jit
def activation_rows(x, y, columns, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * columns
    v = tl.load(x + row + at, mask=at < columns)
    gate = 1.0 / (1.0 + tl.exp(-1.702 * v))
    tl.store(y + row + at, tl.maximum(v, 0.0) * gate + 0.1 * libdevice.tanh(v), mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        activation_rows[(rows, triton.cdiv(columns, 2048))](x, y, columns, BLOCK=2048, num_warps=4)
        return y
