"""A program a row in blocks: mean, variance and result in three passes."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layernorm_blocks(x, weight, bias, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row + at, mask=at < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + at, mask=at < columns, other=0.0)
        square += tl.where(at < columns, (v - mean) * (v - mean), 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(square, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        v = tl.load(x + row + at, mask=inside)
        w = tl.load(weight + at, mask=inside)
        b = tl.load(bias + at, mask=inside)
        tl.store(y + row + at, (v - mean) * scale * w + b, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        layernorm_blocks[(rows,)](x, self.norm.weight, self.norm.bias, y, columns, self.norm.eps, BLOCK=512)
        return y
