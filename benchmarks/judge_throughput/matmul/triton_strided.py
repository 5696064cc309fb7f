"""A fixed number of programs, each of which strides over the 64 x 64 tiles; products in full float32.

The size must be a multiple of the tile.
"""

import torch
import triton
import triton.language as tl
from torch import nn

PROGRAMS = 264


@triton.jit
def matmul_strided(a, b, c, n, TILE: tl.constexpr, DEPTH: tl.constexpr):
    across = n // TILE
    for tile in range(tl.program_id(0), across * across, tl.num_programs(0)):
        rows = (tile // across) * TILE + tl.arange(0, TILE)
        columns = (tile % across) * TILE + tl.arange(0, TILE)
        depth = tl.arange(0, DEPTH)
        total = tl.zeros((TILE, TILE), tl.float32)
        for k in range(0, n, DEPTH):
            left = tl.load(a + rows[:, None] * n + (k + depth)[None, :])
            right = tl.load(b + (k + depth)[:, None] * n + columns[None, :])
            total = tl.dot(left, right, total, input_precision="ieee")
        tl.store(c + rows[:, None] * n + columns[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.contiguous(), b.contiguous()
        n = a.shape[0]
        c = torch.empty_like(a)
        matmul_strided[(PROGRAMS,)](a, b, c, n, TILE=64, DEPTH=32)
        return c
