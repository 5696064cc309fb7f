"""A block a row, the row held in registers and read once.

The same kernel as in cuda_registers_runtime.py, called through torch's load_inline.
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

// 256 threads, 2048 columns: two quads of the row a thread.
__global__ void layernorm_registers(const float4* __restrict__ x, const float4* __restrict__ weight,
                                    const float4* __restrict__ bias, float4* __restrict__ y, float eps) {
    __shared__ float part[32];
    const float4* row = x + (size_t)blockIdx.x * 512;
    float4* out = y + (size_t)blockIdx.x * 512;
    float4 v[2];
    float sum = 0.0f;
    for (int k = 0; k < 2; k++) {
        v[k] = row[threadIdx.x + 256 * k];
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }
    float mean = block_sum(sum, part) / 2048;
    float square = 0.0f;
    for (int k = 0; k < 2; k++) {
        v[k] = make_float4(v[k].x - mean, v[k].y - mean, v[k].z - mean, v[k].w - mean);
        square += (v[k].x * v[k].x + v[k].y * v[k].y) + (v[k].z * v[k].z + v[k].w * v[k].w);
    }
    float scale = rsqrtf(block_sum(square, part) / 2048 + eps);
    for (int k = 0; k < 2; k++) {
        float4 w = weight[threadIdx.x + 256 * k], b = bias[threadIdx.x + 256 * k];
        out[threadIdx.x + 256 * k] = make_float4(v[k].x * scale * w.x + b.x, v[k].y * scale * w.y + b.y,
                                                 v[k].z * scale * w.z + b.z, v[k].w * scale * w.w + b.w);
    }
}
"""

BINDING = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

torch::Tensor layernorm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    auto y = torch::empty_like(x);
    int rows = x.size(0), columns = x.size(1);
    TORCH_CHECK(columns == 2048, "this kernel needs columns == 2048");
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    layernorm_registers<<<rows, 256, 0, stream>>>(
        (const float4*)x.data_ptr<float>(), (const float4*)weight.data_ptr<float>(),
        (const float4*)bias.data_ptr<float>(), (float4*)y.data_ptr<float>(), eps);
    return y;
}
"""

extension = load_inline(
    name="layernorm_registers",
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
