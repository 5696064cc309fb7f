"""Weighted sums of rows of a large table: one persistent CUDA gather kernel.

Each block owns a run of bags, packs their (offset, weight) pairs into shared memory once, and its warps
then gather all its bags slice by slice (of the columns), without block barriers; each slice of the table
is brought into L2 before it is needed. Output: a private buffer, written anew by each call.
"""

import torch
import torch.nn as nn

from kernelpro import runtime

ENTRIES, DIM, BAGS, ITEMS = 100000, 128, 16384, 64

SLICES = 4  # tune: 2, 4
UNROLL = 8  # tune: 8, 16
WARPS = 8  # tune: 4, 8
BLOCKS = 3  # tune: 2, 3, 4
PREFETCH = 1  # tune: 0, 1
# tune-if: WARPS * BLOCKS * UNROLL <= 256
# tune-if: WARPS * BLOCKS >= 12

lib = runtime.cuda(
    r"""
#include <cuda_runtime.h>

constexpr int ENTRIES = 100000, BAGS = 16384, ITEMS = 64, SMS = 132;
constexpr int THREADS = WARPS * 32;
constexpr int GRID  = SMS * BLOCKS;
constexpr int OWN   = (BAGS + GRID - 1) / GRID;             // most bags a block owns: 42 at BLOCKS=3
constexpr int LOADS = (OWN * 32 + THREADS - 1) / THREADS;   // 16-byte pieces of ids a thread brings
constexpr int LPR   = 32 / SLICES;                          // lanes (a float4 each) per row piece

static_assert((32 / SLICES) % (UNROLL / 2) == 0, "whole batches");
static_assert(BAGS * 7 >= ENTRIES, "the prefetch covers the table");
static_assert(OWN * 512 + 16 <= 48 * 1024, "static shared memory");

__device__ __forceinline__ void prefetch_piece(const float* table, int row, int slice) {
    const char* q = reinterpret_cast<const char*>(table) + (size_t)row * 512 + slice * (LPR * 16);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :: "l"(__cvta_generic_to_global(q)), "r"(LPR * 16) : "memory");
}

__global__ void __launch_bounds__(THREADS, BLOCKS)
bag_kernel(const long long* __restrict__ ids, const float* __restrict__ weights,
           const float* __restrict__ table, float* __restrict__ out)
{
    __shared__ int4 pairs[OWN * 32];        // {byte offset, weight, byte offset, weight} of items 2i, 2i+1
    __shared__ int s_next;
    const int lane = threadIdx.x & 31;
    const int b0 = (int)((long long)blockIdx.x * BAGS / GRID);
    const int n  = (int)((long long)(blockIdx.x + 1) * BAGS / GRID) - b0;   // OWN or OWN - 1
    if (threadIdx.x == 0) s_next = 0;

    // this block's ids and weights, once; all loads are issued before the first store
    {
        const int4* src = reinterpret_cast<const int4*>(ids + (size_t)b0 * ITEMS);
        const float2* wsrc = reinterpret_cast<const float2*>(weights + (size_t)b0 * ITEMS);
        int4 two[LOADS];
        float2 ww[LOADS];
        #pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int idx = j * THREADS + threadIdx.x;
            two[j] = make_int4(0, 0, 0, 0);
            ww[j] = make_float2(0.f, 0.f);
            if (idx < n * 32) {
                two[j] = __ldcs(src + idx);
                ww[j] = __ldcs(wsrc + idx);
            }
        }
#if PREFETCH
        for (int r = blockIdx.x * THREADS + threadIdx.x; r < ENTRIES; r += GRID * THREADS)
            prefetch_piece(table, r, 0);    // DRAM streams slice 0 while the ids arrive
#endif
        #pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const int idx = j * THREADS + threadIdx.x;
            if (idx < n * 32)               // ids are in 0..99999: the low words are enough
                pairs[idx] = make_int4(two[j].x * 512, __float_as_int(ww[j].x),
                                       two[j].z * 512, __float_as_int(ww[j].y));
        }
    }
    __syncthreads();                        // the only barrier

    const int sub = lane / LPR;             // which of the SLICES rows of a step this lane works on
    const int todo = n * SLICES;
    while (true) {                          // (slice, bag) of this block, slice-major
        int i = 0;
        if (lane == 0) i = atomicAdd(&s_next, 1);
        i = __shfl_sync(0xffffffffu, i, 0);
        if (i >= todo) break;
        const int slice = i / n, k = i - slice * n, bag = b0 + k;
#if PREFETCH
        if (slice + 1 < SLICES && lane < 7) {   // all rows, spread over the time of this slice
            const int r = bag * 7 + lane;
            if (r < ENTRIES) prefetch_piece(table, r, slice + 1);
        }
#endif
        const int4* pr = pairs + k * 32;
        const char* base = reinterpret_cast<const char*>(table) + (slice * LPR + lane % LPR) * 16;
        float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);

        #pragma unroll 1
        for (int k0 = 0; k0 < 32 / SLICES; k0 += UNROLL / 2) {
            float4 v[UNROLL];
            float wt[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL / 2; ++u) {
                const int4 p = pr[(k0 + u) * SLICES + sub];     // one LDS.128 for two rows, broadcast
                v[2 * u] = __ldg(reinterpret_cast<const float4*>(base + (unsigned)p.x));
                wt[2 * u] = __int_as_float(p.y);
                v[2 * u + 1] = __ldg(reinterpret_cast<const float4*>(base + (unsigned)p.z));
                wt[2 * u + 1] = __int_as_float(p.w);
            }
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                acc.x = fmaf(wt[u], v[u].x, acc.x);
                acc.y = fmaf(wt[u], v[u].y, acc.y);
                acc.z = fmaf(wt[u], v[u].z, acc.z);
                acc.w = fmaf(wt[u], v[u].w, acc.w);
            }
        }

        #pragma unroll
        for (int m = LPR; m < 32; m <<= 1) {    // add up the SLICES partial sums
            acc.x += __shfl_xor_sync(0xffffffffu, acc.x, m);
            acc.y += __shfl_xor_sync(0xffffffffu, acc.y, m);
            acc.z += __shfl_xor_sync(0xffffffffu, acc.z, m);
            acc.w += __shfl_xor_sync(0xffffffffu, acc.w, m);
        }
        if (sub == 0)
            __stcs(reinterpret_cast<float4*>(out) + bag * 32 + slice * LPR + lane, acc);
    }
}

extern "C" int bag_forward(const long long* ids, const float* weights, const float* table, float* out, cudaStream_t stream) {
    static bool ready = false;
    if (!ready) {                           // shared memory for BLOCKS blocks an SM, the rest stays L1
        cudaError_t e = cudaFuncSetAttribute(bag_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 35);
        if (e != cudaSuccess) return (int)e;
        ready = true;
    }
    bag_kernel<<<GRID, THREADS, 0, stream>>>(ids, weights, table, out);
    return (int)cudaGetLastError();
}
""",
    flags=[
        f"-DSLICES={SLICES}",
        f"-DUNROLL={UNROLL}",
        f"-DWARPS={WARPS}",
        f"-DBLOCKS={BLOCKS}",
        f"-DPREFETCH={PREFETCH}",
    ],
)


class ModelNew(nn.Module):
    def __init__(self, entries, dim):
        super().__init__()
        self.table = nn.Parameter(torch.randn(entries, dim))
        self._state = None

    def _first(self, ids, weights):
        table = self.table.detach()
        assert tuple(ids.shape) == (BAGS, ITEMS) and ids.dtype == torch.int64 and ids.is_contiguous()
        assert tuple(weights.shape) == (BAGS, ITEMS) and weights.dtype == torch.float32 and weights.is_contiguous()
        assert tuple(table.shape) == (ENTRIES, DIM) and table.dtype == torch.float32 and table.is_contiguous()
        out = torch.empty((BAGS, DIM), device=ids.device, dtype=torch.float32)
        self._state = state = (lib.bag_forward, table, out)
        return state

    def forward(self, ids, weights):
        state = self._state
        if state is None:
            state = self._first(ids, weights)
        fn, table, out = state
        fn(ids, weights, table, out)
        return out
