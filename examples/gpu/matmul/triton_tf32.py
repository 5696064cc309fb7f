"""Matrix product on TF32 tensor cores as c.T = b.T a.T.

The operand b goes through registers, where it is transposed and rounded.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_kernel(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    # Concurrent programs form a square of tiles, so that L2 serves most loads.
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    group = tl.minimum(GROUP, tiles_m - first)
    within = pid % (GROUP * tiles_n)
    row = (first + within % group) * BM
    col = within // group * BN

    acc = tl.zeros((BN, BM), dtype=tl.float32)
    for depth in range(0, k, BK):
        bits = b.load([depth, col]).to(tl.int32, bitcast=True)
        rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)  # the hardware would truncate
        acc = tl.dot(rounded.T, a.load([row, depth]).T, acc, input_precision="tf32")
    c.store([row, col], acc.T)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device)
        tile_a = TensorDescriptor.from_tensor(a, [256, 32])
        tile_b = TensorDescriptor.from_tensor(b, [32, 128])
        tile_c = TensorDescriptor.from_tensor(c, [256, 128])
        grid = (triton.cdiv(m, 256) * triton.cdiv(n, 128),)
        matmul_kernel[grid](tile_a, tile_b, tile_c, m, n, k, BM=256, BN=128, BK=32, GROUP=8, num_warps=8, num_stages=4)
        return c
