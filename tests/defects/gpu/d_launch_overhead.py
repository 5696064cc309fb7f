# defect: launch_overhead/host_gaps | task: gelu_bias | language: triton | static: no | expect: 8x | summary: a launch for every 32 rows: 256 kernels of two microseconds each
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_bias_kernel(x_ptr, bias_ptr, y_ptr, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    offset = row[:, None] * cols + column[None, :]
    v = tl.load(x_ptr + offset) + tl.load(bias_ptr + column)[None, :]
    twice_u = 1.5957691216057308 * (v + 0.044715 * v * v * v)  # 0.5 * (1 + tanh(u)) is the logistic function of 2u
    tl.store(y_ptr + offset, v / (1.0 + tl.exp(-twice_u)))


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cols = x.shape[1]
        for some, result in zip(x.split(32), y.split(32), strict=True):
            gelu_bias_kernel[(cols // 256, 8)](some, self.bias, result, cols, ROWS=4, COLS=256, num_warps=4)
        return y
