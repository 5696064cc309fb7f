"""Linear, bias and exact GELU in one kernel on TF32 tensor cores.

128x256 tiles, x is rounded in registers.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def linear_gelu_kernel(
    x, w, bias_ptr, y, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    # Concurrent programs form a square of tiles, so that L2 serves most loads.
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    group = tl.minimum(GROUP, tiles_m - first)
    within = pid % (GROUP * tiles_n)
    row = (first + within % group) * BM
    col = within // group * BN

    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for depth in range(0, k, BK):
        bits = x.load([row, depth]).to(tl.int32, bitcast=True)
        rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)  # the hardware would truncate
        acc = tl.dot(rounded, w.load([col, depth]).T, acc, input_precision="tf32")
    column = col + tl.arange(0, BN)
    v = acc + tl.load(bias_ptr + column, mask=column < n, other=0.0)[None, :]
    y.store([row, col], 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)))


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        x, weight = x.contiguous(), self.linear.weight.detach()
        (m, k), n = x.shape, weight.shape[0]
        y = torch.empty(m, n, device=x.device)
        tile_x = TensorDescriptor.from_tensor(x, [128, 32])
        tile_w = TensorDescriptor.from_tensor(weight, [256, 32])
        tile_y = TensorDescriptor.from_tensor(y, [128, 256])
        grid = (triton.cdiv(m, 128) * triton.cdiv(n, 256),)
        bias = self.linear.bias
        linear_gelu_kernel[grid](
            tile_x, tile_w, bias, tile_y, m, n, k, BM=128, BN=256, BK=32, GROUP=16, num_warps=8, num_stages=4
        )
        return y
