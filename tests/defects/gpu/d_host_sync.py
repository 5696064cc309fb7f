# defect: host_sync | task: group_normalise | language: triton | static: no | expect: 2.5x | summary: the largest magnitude of every group is fetched with .item() before the group is scaled
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def part_kernel(x_ptr, parts_ptr, start, BLOCK: tl.constexpr):
    offset = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(parts_ptr + tl.program_id(0), tl.max(tl.abs(tl.load(x_ptr + offset)), axis=0))


@triton.jit
def whole_kernel(parts_ptr, largest_ptr, BLOCK: tl.constexpr):
    tl.store(largest_ptr, tl.max(tl.load(parts_ptr + tl.arange(0, BLOCK)), axis=0))


@triton.jit
def scale_kernel(x_ptr, y_ptr, start, scale, BLOCK: tl.constexpr):
    offset = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offset, tl.load(x_ptr + offset) * scale)


BLOCK = 8192


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        groups, size = x.shape
        parts, largest = torch.empty(size // BLOCK, device=x.device), torch.empty((), device=x.device)
        for group in range(groups):
            part_kernel[(size // BLOCK,)](x, parts, group * size, BLOCK=BLOCK, num_warps=8)
            whole_kernel[(1,)](parts, largest, BLOCK=size // BLOCK)
            scale = 1.0 / largest.item()
            scale_kernel[(size // BLOCK,)](x, y, group * size, scale, BLOCK=BLOCK, num_warps=8)
        return y
