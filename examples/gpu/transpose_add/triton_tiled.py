"""x.t() + y through 64x64 tiles.

Triton transposes the tile in shared memory, so that both accesses are coalesced.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def transpose_add_kernel(x_ptr, y_ptr, out_ptr, rows, cols, TILE: tl.constexpr):
    # x has `rows` rows of `cols`; y and out have `cols` rows of `rows`.
    r = tl.program_id(1) * TILE + tl.arange(0, TILE)
    c = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = (r < rows)[:, None] & (c < cols)[None, :]
    x = tl.load(x_ptr + r.to(tl.int64)[:, None] * cols + c[None, :], mask=inside, other=0.0)
    turned = c.to(tl.int64)[:, None] * rows + r[None, :]
    inside = (c < cols)[:, None] & (r < rows)[None, :]
    y = tl.load(y_ptr + turned, mask=inside, other=0.0)
    tl.store(out_ptr + turned, tl.trans(x) + y, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(y)
        rows, cols = x.shape
        grid = (triton.cdiv(cols, 64), triton.cdiv(rows, 64))
        transpose_add_kernel[grid](x, y, out, rows, cols, TILE=64, num_warps=8)
        return out
