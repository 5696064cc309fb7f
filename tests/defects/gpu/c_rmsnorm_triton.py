# control | task: rmsnorm | language: triton | summary: RMSNorm: a program per row keeps the row in registers, so memory is read once
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, y_ptr, dim, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < dim
    start = tl.program_id(0).to(tl.int64) * dim
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / dim + eps)
    tl.store(y_ptr + start + column, x * scale * weight, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows, dim = x.shape
        rmsnorm_kernel[(rows,)](x, self.weight, y, dim, 1e-6, BLOCK=triton.next_power_of_2(dim), num_warps=8)
        return y
