# defect: slow_mma_family | task: matmul_bf16 | language: triton | static: yes | expect: 2x | summary: two warps cannot form a warpgroup, so that the product falls back to mma.sync
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    # Programs that run together form a square of tiles, so that L2 serves most loads.
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    pid = tl.program_id(0)
    first = pid // (GROUP * tiles_n) * GROUP
    group = tl.minimum(GROUP, tiles_m - first)
    within = pid % (GROUP * tiles_n)
    row = (first + within % group) * BM + tl.arange(0, BM)
    col = within // group * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)

    a_tile = a_ptr + row[:, None] * k + depth[None, :]
    b_tile = b_ptr + depth[:, None] * n + col[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, k, BK):
        acc = tl.dot(tl.load(a_tile), tl.load(b_tile), acc)
        a_tile += BK
        b_tile += BK * n
    tl.store(c_ptr + row[:, None] * n + col[None, :], acc.to(tl.bfloat16))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device, dtype=a.dtype)
        grid = (triton.cdiv(m, 64) * triton.cdiv(n, 128),)
        matmul_kernel[grid](a, b, c, m, n, k, BM=64, BN=128, BK=32, GROUP=8, num_warps=2, num_stages=4)
        return c
