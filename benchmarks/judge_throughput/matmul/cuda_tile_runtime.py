"""32 x 32 tiles in shared memory, one output a thread.

The same kernel as in cuda_tile_inline.py, called through kernelpro.runtime.
"""

import torch
from torch import nn

from kernelpro import runtime

KERNEL = r"""
__global__ void matmul_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n) {
    __shared__ float at[32][32], bt[32][32];
    int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 32) {
        at[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        bt[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 32; i++) sum += at[threadIdx.y][i] * bt[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""

LAUNCHER = r"""
extern "C" int matmul(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
    if (!(n % 32 == 0)) return cudaErrorInvalidValue;
    matmul_tile<<<dim3(n / 32, n / 32), dim3(32, 32), 0, stream>>>(a, b, c, n);
    return cudaGetLastError();
}
"""

lib = runtime.cuda(KERNEL + LAUNCHER)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.contiguous(), b.contiguous()
        c = torch.empty_like(a)
        lib.matmul(a, b, c, a.shape[0])
        return c
