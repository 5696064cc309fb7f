# defect: low_parallelism | task: gelu_bias | language: triton | static: no | expect: 5x | summary: eight programs walk through the whole matrix, and 124 multiprocessors have nothing to do
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu_bias_kernel(x_ptr, bias_ptr, y_ptr, count, cols, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        offset = start + tl.arange(0, BLOCK)
        column = tl.multiple_of(start % cols, 16)
        v = tl.load(x_ptr + offset) + tl.load(bias_ptr + column + tl.arange(0, BLOCK))
        twice_u = 1.5957691216057308 * (v + 0.044715 * v * v * v)  # 0.5 * (1 + tanh(u)) is the logistic function of 2u
        tl.store(y_ptr + offset, v / (1.0 + tl.exp(-twice_u)))


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        gelu_bias_kernel[(8,)](x, self.bias, y, x.numel(), x.shape[1], BLOCK=8192, num_warps=16)
        return y
