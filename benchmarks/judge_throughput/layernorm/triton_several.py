"""Several rows a program, all of them at once."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layernorm_several(x, weight, bias, y, rows, columns, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (at < columns)[None, :]
    place = row.to(tl.int64)[:, None] * columns + at[None, :]
    v = tl.load(x + place, mask=inside, other=0.0)
    mean = tl.sum(v, axis=1) / columns
    centred = tl.where(inside, v - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / columns + eps)
    w = tl.load(weight + at, mask=at < columns)
    b = tl.load(bias + at, mask=at < columns)
    tl.store(y + place, centred * scale[:, None] * w[None, :] + b[None, :], mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        layernorm_several[(triton.cdiv(rows, 4),)](
            x,
            self.norm.weight,
            self.norm.bias,
            y,
            rows,
            columns,
            self.norm.eps,
            ROWS=4,
            BLOCK=block,
            num_warps=8,
        )
        return y
