"""128 x 64 tiles, ordered in groups of rows so that neighbours share what is in L2; products in full float32.

The size must be a multiple of the tile.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_grouped(
    a, b, c, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr
):
    across = n // COLUMNS
    group = tl.program_id(0) // (GROUP * across)
    inside = tl.program_id(0) % (GROUP * across)
    rows = (group * GROUP + inside % GROUP) * ROWS + tl.arange(0, ROWS)
    columns = (inside // GROUP) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    left_at = a + rows[:, None] * n + depth[None, :]
    right_at = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, n, DEPTH):
        total = tl.dot(tl.load(left_at), tl.load(right_at), total, input_precision="ieee")
        left_at += DEPTH
        right_at += DEPTH * n
    tl.store(c + rows[:, None] * n + columns[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.contiguous(), b.contiguous()
        n = a.shape[0]
        c = torch.empty_like(a)
        programs = (n // 128) * (n // 64)
        matmul_grouped[(programs,)](a, b, c, n, ROWS=128, COLUMNS=64, DEPTH=32, GROUP=4, num_warps=8)
        return c
