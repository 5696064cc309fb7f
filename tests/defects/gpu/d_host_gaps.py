# defect: host_gaps | task: centre_scale | language: triton | static: no | expect: 4x | summary: a sum of 20000 terms in Python, in every call, while the device waits for the second kernel
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def column_sum_kernel(x_ptr, parts_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros((COLS,), dtype=tl.float32)
    for row in range(tl.program_id(1) * ROWS, tl.program_id(1) * ROWS + ROWS, 8):
        line = row + tl.arange(0, 8)
        total += tl.sum(tl.load(x_ptr + line[:, None] * cols + column[None, :]), axis=0)
    tl.store(parts_ptr + tl.program_id(1) * cols + column, total)


@triton.jit
def centre_kernel(x_ptr, parts_ptr, y_ptr, rows, cols, scale, PARTS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    part = tl.arange(0, PARTS)
    mean = tl.sum(tl.load(parts_ptr + part[:, None] * cols + column[None, :]), axis=0) / rows
    for row in range(tl.program_id(1) * ROWS, tl.program_id(1) * ROWS + ROWS, 8):
        line = row + tl.arange(0, 8)
        offset = line[:, None] * cols + column[None, :]
        tl.store(y_ptr + offset, (tl.load(x_ptr + offset) - mean[None, :]) * scale)


class ModelNew(nn.Module):
    def __init__(self, terms):
        super().__init__()
        self.terms = terms

    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        parts, y = torch.empty(32, cols, device=x.device), torch.empty_like(x)
        column_sum_kernel[(cols // 256, 32)](x, parts, rows, cols, ROWS=rows // 32, COLS=256, num_warps=4)
        scale = 1.0 / sum(1.0 / k for k in range(1, self.terms + 1))
        centre_kernel[(cols // 256, 64)](x, parts, y, rows, cols, scale, PARTS=32, ROWS=rows // 64, COLS=256, num_warps=4)
        return y
