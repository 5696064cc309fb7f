"""A program a row, the whole row at once."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layernorm_row(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row + at, mask=inside, other=0.0)
    mean = tl.sum(v, axis=0) / columns
    centred = tl.where(inside, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(y + row + at, centred * scale * w + b, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        layernorm_row[(rows,)](
            x,
            self.norm.weight,
            self.norm.bias,
            y,
            columns,
            self.norm.eps,
            BLOCK=triton.next_power_of_2(columns),
            num_warps=8,
        )
        return y
