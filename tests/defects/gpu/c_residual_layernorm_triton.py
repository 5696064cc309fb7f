# control | task: residual_layernorm | language: triton | summary: x + residual and LayerNorm in one pass: a program per row keeps the row in registers
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def residual_layernorm_kernel(x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, dim, eps, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < dim
    start = tl.program_id(0).to(tl.int64) * dim
    x = tl.load(x_ptr + start + column, mask=inside, other=0.0)
    x += tl.load(residual_ptr + start + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
    centred = tl.where(inside, x - tl.sum(x, axis=0) / dim, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    tl.store(y_ptr + start + column, centred * scale * weight + bias, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        rows, dim = x.shape
        residual_layernorm_kernel[(rows,)](
            x, residual, self.weight, self.bias, y, dim, 1e-5, BLOCK=triton.next_power_of_2(dim), num_warps=8
        )
        return y
