# control | task: row_norm | language: triton | summary: 32 rows a program, each read once by eight lanes
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_norm_kernel(x_ptr, y_ptr, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x = tl.load(x_ptr + row.to(tl.int64)[:, None] * cols + tl.arange(0, COLS)[None, :])
    tl.store(y_ptr + row, tl.sqrt(tl.sum(x * x, axis=1)))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device)
        row_norm_kernel[(x.shape[0] // 32,)](x, y, x.shape[1], ROWS=32, COLS=x.shape[1], num_warps=8)
        return y
