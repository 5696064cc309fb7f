"""A block a row: a pass for the mean, one for the variance, one to write.

The same kernel as in cuda_passes_runtime.py, called through torch's load_inline.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

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

BINDING = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

torch::Tensor layernorm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    auto y = torch::empty_like(x);
    int rows = x.size(0), columns = x.size(1);
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    layernorm_passes<<<rows, 256, 0, stream>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), columns, eps);
    return y;
}
"""

extension = load_inline(
    name="layernorm_passes",
    cpp_sources="torch::Tensor layernorm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);",
    cuda_sources=KERNEL + BINDING,
    functions=["layernorm"],
)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.layernorm(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)
