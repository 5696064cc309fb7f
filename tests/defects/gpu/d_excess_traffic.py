# defect: excess_traffic | task: row_moments | language: cuda | static: no | expect: 3x | summary: three passes over rows that no cache holds: each comes from memory again
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cfloat>

constexpr int THREADS = 1024, WARPS = THREADS / 32, BATCH = 4;

__device__ float largest(float a, float b) { return fmaxf(a, b); }
__device__ float sum(float a, float b) { return a + b; }

template <class Combine>
__device__ float block_reduce(float v, Combine combine) {
    __shared__ float parts[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) v = combine(v, __shfl_xor_sync(~0u, v, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[threadIdx.x % 32];
    for (int offset = 16; offset > 0; offset /= 2) v = combine(v, __shfl_xor_sync(~0u, v, offset));
    return v;
}

// One pass over a row, four vectors in flight.
template <class Combine, class Map>
__device__ float pass(const float4* row, int vectors, float start, Combine combine, Map map) {
    for (int base = threadIdx.x; base < vectors; base += THREADS * BATCH) {
        float4 v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) v[i] = row[base + i * THREADS];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            start = combine(start, combine(combine(map(v[i].x), map(v[i].y)), combine(map(v[i].z), map(v[i].w))));
        }
    }
    return block_reduce(start, combine);
}

__global__ void __launch_bounds__(THREADS, 2)
row_moments_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    const float4* row = (const float4*)(x + size_t(blockIdx.x) * cols);
    const int vectors = cols / 4;
    const auto max2 = [](float a, float b) { return largest(a, b); };
    const auto add2 = [](float a, float b) { return sum(a, b); };
    const float top = pass(row, vectors, -FLT_MAX, max2, [](float v) { return v; });
    const float mean = pass(row, vectors, 0.0f, add2, [](float v) { return v; }) / cols;
    const float variance = pass(row, vectors, 0.0f, add2, [=](float v) { return (v - mean) * (v - mean); }) / cols;
    if (threadIdx.x == 0) {
        y[blockIdx.x] = top;
        y[rows + blockIdx.x] = mean;
        y[2 * rows + blockIdx.x] = variance;
    }
}

extern "C" int row_moments(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols % (4 * THREADS * BATCH)) return cudaErrorInvalidValue;
    row_moments_kernel<<<rows, THREADS, 0, stream>>>(x, y, rows, cols);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(3, x.shape[0], device=x.device)
        lib.row_moments(x, y, x.shape[0], x.shape[1])
        return y
