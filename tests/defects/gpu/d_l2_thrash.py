# defect: l2_thrash/excess_traffic | task: farthest | language: cuda | static: no | expect: 4x | summary: blocks sweep all values for one point before they turn to the next, so that the cache never serves twice
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, WARPS = THREADS / 32, VECTORS = 16, CHUNK = THREADS * VECTORS * 4;

__device__ float block_max(float v) {
    __shared__ float parts[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, offset));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[threadIdx.x % WARPS];
    for (int offset = WARPS / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, offset));
    return v;
}

// Block (chunk, point): chunks follow each other, so a chunk comes back only after all the others.
__global__ void __launch_bounds__(THREADS)
chunk_kernel(const float4* __restrict__ x, const float* __restrict__ points, float* __restrict__ parts) {
    const float point = __ldg(points + blockIdx.y);
    const float4* from = x + size_t(blockIdx.x) * (CHUNK / 4) + threadIdx.x;
    float farthest = 0;
#pragma unroll 8
    for (int i = 0; i < VECTORS; ++i) {
        const float4 v = __ldg(from + i * THREADS);
        farthest = fmaxf(farthest, fmaxf(fmaxf(fabsf(v.x - point), fabsf(v.y - point)),
                                         fmaxf(fabsf(v.z - point), fabsf(v.w - point))));
    }
    farthest = block_max(farthest);
    if (threadIdx.x == 0) parts[blockIdx.y * gridDim.x + blockIdx.x] = farthest;
}

__global__ void __launch_bounds__(THREADS)
point_kernel(const float* __restrict__ parts, float* __restrict__ y, int chunks) {
    float farthest = 0;
    for (int i = threadIdx.x; i < chunks; i += THREADS) farthest = fmaxf(farthest, parts[blockIdx.x * chunks + i]);
    farthest = block_max(farthest);
    if (threadIdx.x == 0) y[blockIdx.x] = farthest;
}

extern "C" int farthest(const float* x, const float* points, float* parts, float* y, int count, int queries,
                        cudaStream_t stream) {
    if (count % CHUNK) return cudaErrorInvalidValue;
    chunk_kernel<<<dim3(count / CHUNK, queries), THREADS, 0, stream>>>((const float4*)x, points, parts);
    point_kernel<<<queries, THREADS, 0, stream>>>(parts, y, count / CHUNK);
    return cudaGetLastError();
}
""")


CHUNK = 16384


class ModelNew(nn.Module):
    def forward(self, x, points):
        x, points = x.contiguous(), points.contiguous()
        parts = torch.empty(points.numel(), x.numel() // CHUNK, device=x.device)
        y = torch.empty_like(points)
        lib.farthest(x, points, parts, y, x.numel(), points.numel())
        return y
