# defect: atomics_contention | task: row_energy | language: triton | static: no | expect: 20x | summary: every element goes to the sum of its row by an atomic of its own
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_energy_kernel(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * cols + column)
    tl.atomic_add(y_ptr + row + tl.zeros((BLOCK,), dtype=tl.int32), x * x / cols, sem="relaxed")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, cols = x.shape
        y = torch.zeros(rows, device=x.device)
        row_energy_kernel[(cols // 1024, rows)](x, y, cols, BLOCK=1024, num_warps=4)
        return y
