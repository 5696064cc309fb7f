"""silu(gate) * up in one pass with 16-byte accesses, four loads in flight per thread."""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, VECTORS = 2;

__device__ float silu(float v) { return __fdividef(v, 1.0f + expf(-v)); }

__global__ void __launch_bounds__(THREADS)
swiglu_kernel(const float4* __restrict__ gate, const float4* __restrict__ up, float4* __restrict__ y, long long count) {
    const long long start = (long long)blockIdx.x * (THREADS * VECTORS) + threadIdx.x;
    float4 g[VECTORS], u[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (start + i * THREADS < count) {
            g[i] = __ldcs(gate + start + i * THREADS);
            u[i] = __ldcs(up + start + i * THREADS);
        }
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (start + i * THREADS < count) {
            __stcs(y + start + i * THREADS, make_float4(silu(g[i].x) * u[i].x, silu(g[i].y) * u[i].y,
                                                        silu(g[i].z) * u[i].z, silu(g[i].w) * u[i].w));
        }
    }
}

extern "C" int swiglu(const float* gate, const float* up, float* y, long long elements, cudaStream_t stream) {
    if (elements % 4) return cudaErrorInvalidValue;
    const long long count = elements / 4, per_block = THREADS * VECTORS;
    swiglu_kernel<<<(unsigned)((count + per_block - 1) / per_block), THREADS, 0, stream>>>(
        (const float4*)gate, (const float4*)up, (float4*)y, count);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        lib.swiglu(gate, up, y, gate.numel())
        return y
