"""A block a row: a pass for the mean, one for the variance, one to write.

The same kernel as in cuda_passes_inline.py, called through kernelpro.runtime.
"""

import torch
from torch import nn

from kernelpro import runtime

KERNEL = r"""
__device__ __forceinline__ float warp_sum(float v) {
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

// Every thread gets the sum; `part` has one slot a warp. The first barrier protects the previous use of `part`.
__device__ __forceinline__ float block_sum(float v, float* part) {
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : 0.0f);
}

__global__ void layernorm_passes(const float* __restrict__ x, const float* __restrict__ weight,
                                 const float* __restrict__ bias, float* __restrict__ y, int columns, float eps) {
    __shared__ float part[32];
    const float* row = x + (size_t)blockIdx.x * columns;
    float* out = y + (size_t)blockIdx.x * columns;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i];
    float mean = block_sum(sum, part) / columns;
    float square = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) square += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(block_sum(square, part) / columns + eps);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = (row[i] - mean) * scale * weight[i] + bias[i];
}
"""

LAUNCHER = r"""
extern "C" int layernorm(const float* x, const float* weight, const float* bias, float* y,
                         int rows, int columns, float eps, cudaStream_t stream) {
    layernorm_passes<<<rows, 256, 0, stream>>>(x, weight, bias, y, columns, eps);
    return cudaGetLastError();
}
"""

lib = runtime.cuda(KERNEL + LAUNCHER)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.layernorm(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1], self.norm.eps)
        return y
