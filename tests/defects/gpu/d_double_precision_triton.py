# defect: double_precision | task: softmax | language: triton | static: yes | expect: 1.7x | summary: exponentials and sums in float64 where float32 has digits enough
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * cols
    x = tl.load(x_ptr + start + column, mask=column < cols, other=-float("inf"))
    e = tl.exp((x - tl.max(x, axis=0)).to(tl.float64))
    y = e / tl.sum(e, axis=0)
    tl.store(y_ptr + start + column, y.to(tl.float32), mask=column < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=16)
        return y
