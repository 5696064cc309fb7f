"""A block a row, the row held in registers and read once.

The same kernel as in cuda_registers_runtime.py, called through torch's load_inline.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

KERNEL = r"""
template <bool MAXIMUM>
__device__ __forceinline__ float warp_reduce(float v) {
    for (int offset = 16; offset; offset >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, v, offset);
        v = MAXIMUM ? fmaxf(v, other) : v + other;
    }
    return v;
}

// Every thread gets the result; `part` has one slot a warp. The first barrier protects the previous use of `part`.
template <bool MAXIMUM>
__device__ __forceinline__ float block_reduce(float v, float* part) {
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_reduce<MAXIMUM>(v);
    __syncthreads();
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_reduce<MAXIMUM>(lane < warps ? part[lane] : (MAXIMUM ? -3.4e38f : 0.0f));
}

// 256 threads, 4096 columns: four quads of the row a thread.
__global__ void softmax_registers(const float4* __restrict__ x, float4* __restrict__ y) {
    __shared__ float part[32];
    const float4* row = x + (size_t)blockIdx.x * 1024;
    float4* out = y + (size_t)blockIdx.x * 1024;
    float4 v[4];
    float top = -3.4e38f;
    for (int k = 0; k < 4; k++) {
        v[k] = row[threadIdx.x + 256 * k];
        top = fmaxf(top, fmaxf(fmaxf(v[k].x, v[k].y), fmaxf(v[k].z, v[k].w)));
    }
    top = block_reduce<true>(top, part);
    float sum = 0.0f;
    for (int k = 0; k < 4; k++) {
        v[k] = make_float4(expf(v[k].x - top), expf(v[k].y - top), expf(v[k].z - top), expf(v[k].w - top));
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }
    float scale = 1.0f / block_reduce<false>(sum, part);
    for (int k = 0; k < 4; k++)
        out[threadIdx.x + 256 * k] = make_float4(v[k].x * scale, v[k].y * scale, v[k].z * scale, v[k].w * scale);
}
"""

BINDING = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int rows = x.size(0), columns = x.size(1);
    TORCH_CHECK(columns == 4096, "this kernel needs columns == 4096");
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    softmax_registers<<<rows, 256, 0, stream>>>((const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>());
    return y;
}
"""

extension = load_inline(
    name="softmax_registers",
    cpp_sources="torch::Tensor softmax(torch::Tensor x);",
    cuda_sources=KERNEL + BINDING,
    functions=["softmax"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return extension.softmax(x.contiguous())
