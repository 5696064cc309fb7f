"""Softmax: a block per row keeps the row in registers, so memory is read once; one barrier per row."""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cfloat>

constexpr int COLS = 8192, THREADS = 512, WARPS = THREADS / 32, VECTORS = COLS / 4 / THREADS;

__device__ float warp_max(float v, int width) {
    for (int offset = width / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, offset));
    return v;
}

__device__ float warp_sum(float v, int width) {
    for (int offset = width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

__global__ void __launch_bounds__(THREADS) softmax_kernel(const float4* __restrict__ x, float4* __restrict__ y) {
    __shared__ float maxima[WARPS], sums[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t start = size_t(blockIdx.x) * (COLS / 4) + threadIdx.x;

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + start + i * THREADS);

    // Each warp uses its own maximum for the exponentials; the finite initial value handles rows with -inf.
    float largest = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) largest = fmaxf(largest, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    largest = warp_max(largest, 32);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = {expf(v[i].x - largest), expf(v[i].y - largest), expf(v[i].z - largest), expf(v[i].w - largest)};
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    sum = warp_sum(sum, 32);
    if (lane == 0) maxima[warp] = largest, sums[warp] = sum;
    __syncthreads();

    const float other = maxima[lane % WARPS];
    const float row_max = warp_max(other, WARPS);
    const float row_sum = warp_sum(sums[lane % WARPS] * expf(other - row_max), WARPS);
    const float scale = expf(largest - row_max) / row_sum;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        __stcs(y + start + i * THREADS, make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale));
    }
}

extern "C" int softmax(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols != COLS) return cudaErrorInvalidValue;
    softmax_kernel<<<rows, THREADS, 0, stream>>>((const float4*)x, (float4*)y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
