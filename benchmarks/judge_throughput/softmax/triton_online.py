"""A program a row in blocks: maximum and sum in one pass, the result in a second."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_online(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    top = tl.full((BLOCK,), -3.4e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
        higher = tl.maximum(top, v)
        total = total * tl.exp(top - higher) + tl.exp(v - higher)
        top = higher
    peak = tl.max(top, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(top - peak), axis=0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
        tl.store(y + row + at, tl.exp(v - peak) * scale, mask=at < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, columns = x.shape
        softmax_online[(rows,)](x, y, columns, BLOCK=1024)
        return y
