import torch
import torch.nn as nn
from kernelpro import runtime

SLICES = 4  # tuned over 1, 2, 4
THREADS = 256  # tuned over 64, 128, 256, 512
UNROLL = 4  # tuned over 2, 4, 8

lib = runtime.cuda(r"""
#include <cuda_runtime.h>
#include <stdint.h>

#ifndef SLICES
#define SLICES 2
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef UNROLL
#define UNROLL 4
#endif

constexpr int DIM   = 128;
constexpr int ITEMS = 64;
constexpr int WARPS = THREADS / 32;
constexpr int LANES = 32 / SLICES;        // lanes (of 16 bytes) that cover a row's slice
constexpr int PER   = ITEMS / SLICES;     // items of a lane group: the warp has SLICES groups
constexpr int PAIRS = PER / 2;            // two items per 16-byte read of (offset, weight)
static_assert(LANES * 4 * SLICES == DIM, "shape");

__device__ __forceinline__ float4 gather(const float4* p) {
    float4 r;
    asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w) : "l"(p));
    return r;
}

__global__ void __launch_bounds__(THREADS)
bag_kernel(const long long* __restrict__ ids, const float* __restrict__ weights,
           const float4* __restrict__ table, float4* __restrict__ out, int bags) {
    __shared__ __align__(16) int2 pairs[WARPS][ITEMS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int bag  = blockIdx.x * WARPS + warp;
    if (bag >= bags) return;              // whole warps leave; only __syncwarp below
    const int slice = blockIdx.y;         // x runs first: one slice of the table at a time

    const size_t first = (size_t)bag * ITEMS;
#pragma unroll
    for (int k = 0; k < ITEMS; k += 32) {
        const long long id = __ldcs(ids + first + k + lane);
        const float w = __ldcs(weights + first + k + lane);
        pairs[warp][k + lane] = make_int2((int)id * (DIM / 4), __float_as_int(w));
    }
    __syncwarp();

    const int group = lane / LANES;
    const float4* base = table + slice * LANES + (lane % LANES);
    const int4* mine = reinterpret_cast<const int4*>(&pairs[warp][group * PER]);

    float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 b = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 1
    for (int j = 0; j < PAIRS; j += UNROLL) {
        int4 q[UNROLL];
        float4 r0[UNROLL], r1[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) q[u] = mine[j + u];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            r0[u] = gather(base + q[u].x);
            r1[u] = gather(base + q[u].z);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const float w0 = __int_as_float(q[u].y), w1 = __int_as_float(q[u].w);
            a.x = fmaf(w0, r0[u].x, a.x);
            a.y = fmaf(w0, r0[u].y, a.y);
            a.z = fmaf(w0, r0[u].z, a.z);
            a.w = fmaf(w0, r0[u].w, a.w);
            b.x = fmaf(w1, r1[u].x, b.x);
            b.y = fmaf(w1, r1[u].y, b.y);
            b.z = fmaf(w1, r1[u].z, b.z);
            b.w = fmaf(w1, r1[u].w, b.w);
        }
    }
    a.x += b.x; a.y += b.y; a.z += b.z; a.w += b.w;
#pragma unroll
    for (int d = LANES; d < 32; d <<= 1) {
        a.x += __shfl_xor_sync(0xffffffffu, a.x, d);
        a.y += __shfl_xor_sync(0xffffffffu, a.y, d);
        a.z += __shfl_xor_sync(0xffffffffu, a.z, d);
        a.w += __shfl_xor_sync(0xffffffffu, a.w, d);
    }
    if (lane < LANES) __stcs(out + (size_t)bag * (DIM / 4) + slice * LANES + lane, a);
}

extern "C" int bag_sum(const long long* ids, const float* weights, const float* table, float* out,
                       int bags, cudaStream_t stream) {
    static_assert(PAIRS % UNROLL == 0, "unroll");
    dim3 grid((bags + WARPS - 1) / WARPS, SLICES);
    bag_kernel<<<grid, THREADS, 0, stream>>>(ids, weights, (const float4*)table, (float4*)out, bags);
    return (int)cudaGetLastError();
}
""", flags=[f"-DSLICES={SLICES}", f"-DTHREADS={THREADS}", f"-DUNROLL={UNROLL}"])


class ModelNew(nn.Module):
    def __init__(self, entries, dim):
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, dim))

    def forward(self, ids, weights):
        assert self.table.shape[1] == 128 and ids.shape[1] == 64 and ids.dtype == torch.int64
        ids = ids.contiguous()
        weights = weights.contiguous()
        bags = ids.shape[0]
        out = torch.empty((bags, 128), device=ids.device, dtype=torch.float32)
        lib.bag_sum(ids, weights, self.table.detach(), out, bags)
        return out
