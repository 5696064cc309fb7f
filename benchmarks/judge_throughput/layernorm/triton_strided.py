"""A fixed number of programs, each of which strides over the rows and keeps weight and bias."""

import torch
import triton
import triton.language as tl
from torch import nn

PROGRAMS = 1056


@triton.jit
def layernorm_strided(x, weight, bias, y, rows, columns, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        place = row.to(tl.int64) * columns + at
        v = tl.load(x + place, mask=inside, other=0.0)
        mean = tl.sum(v, axis=0) / columns
        centred = tl.where(inside, v - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
        tl.store(y + place, centred * scale * w + b, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        layernorm_strided[(PROGRAMS,)](
            x, self.norm.weight, self.norm.bias, y, rows, columns, self.norm.eps, BLOCK=block, num_warps=4
        )
        return y
