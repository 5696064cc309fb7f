# defect: tensor_cores_idle | task: linear_gelu | language: triton | static: yes | expect: 8x | summary: input_precision is ieee, so that the product runs on float32 multiply-adds
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_gelu_kernel(
    x_ptr, w_ptr, bias_ptr, y_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    # Programs that run together form a square of tiles, so that L2 serves most loads.
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    group = tl.minimum(GROUP, tiles_m - first)
    within = pid % (GROUP * tiles_n)
    row = (first + within % group) * BM + tl.arange(0, BM)
    col = within // group * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)

    x_tile = x_ptr + row[:, None] * k + depth[None, :]
    w_tile = w_ptr + col[None, :] * k + depth[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        acc = tl.dot(tl.load(x_tile + start), tl.load(w_tile + start), acc, input_precision="ieee")
    v = acc + tl.load(bias_ptr + col)[None, :]
    tl.store(y_ptr + row[:, None] * n + col[None, :], 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)))


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        x, weight = x.contiguous(), self.linear.weight
        (m, k), n = x.shape, weight.shape[0]
        y = torch.empty(m, n, device=x.device)
        grid = (triton.cdiv(m, 128) * triton.cdiv(n, 64),)
        linear_gelu_kernel[grid](x, weight, self.linear.bias, y, m, n, k, BM=128, BN=64, BK=16, GROUP=16, num_warps=8, num_stages=3)
        return y
