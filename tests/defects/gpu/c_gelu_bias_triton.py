# control | task: gelu_bias | language: triton | summary: Bias and tanh GELU in one pass over 4x1024 tiles; the bias is loaded once for the four rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_bias_kernel(x_ptr, bias_ptr, y_ptr, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (column < cols)[None, :]
    offset = row.to(tl.int64)[:, None] * cols + column[None, :]
    bias = tl.load(bias_ptr + column, mask=column < cols, other=0.0)
    v = tl.load(x_ptr + offset, mask=inside, other=0.0) + bias[None, :]
    twice_u = 1.5957691216057308 * (v + 0.044715 * v * v * v)  # 0.5 * (1 + tanh(u)) is the logistic function of 2u
    tl.store(y_ptr + offset, v / (1.0 + tl.exp(-twice_u)), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, cols = x.shape
        grid = (triton.cdiv(cols, 1024), triton.cdiv(rows, 4))
        gelu_bias_kernel[grid](x, self.bias, y, rows, cols, ROWS=4, COLS=1024, num_warps=8)
        return y
