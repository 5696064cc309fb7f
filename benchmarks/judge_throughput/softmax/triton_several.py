"""Several rows a program, all of them at once."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_several(x, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + at[None, :]
    v = tl.load(x + place, mask=inside, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=1)[:, None])
    tl.store(y + place, e / tl.sum(e, axis=1)[:, None], mask=inside)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        softmax_several[(triton.cdiv(rows, 2),)](x, y, rows, columns, ROWS=2, BLOCK=block, num_warps=8)
        return y
