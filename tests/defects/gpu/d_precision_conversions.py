# defect: precision_conversions | task: leaky_bf16 | language: cuda | static: yes | expect: 3x | summary: every step goes to bfloat16 and back instead of staying in float
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cuda_bf16.h>

constexpr int THREADS = 256, STEPS = 16, LANES = 8;  // eight bfloat16 in 16 bytes

__global__ void __launch_bounds__(THREADS)
leaky_kernel(const uint4* __restrict__ x, const uint4* __restrict__ decay, uint4* __restrict__ y) {
    const size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x;
    const uint4 decays[STEPS / LANES] = {__ldg(decay), __ldg(decay + 1)};
    const __nv_bfloat16* d = (const __nv_bfloat16*)decays;
    uint4 packed = __ldcs(x + i);
    __nv_bfloat16* v = (__nv_bfloat16*)&packed;
    __nv_bfloat16 h[LANES];
#pragma unroll
    for (int j = 0; j < LANES; ++j) h[j] = v[j];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int j = 0; j < LANES; ++j) {
            h[j] = __float2bfloat16(fmaf(__bfloat162float(h[j]), __bfloat162float(d[step]), __bfloat162float(v[j])));
        }
    }
#pragma unroll
    for (int j = 0; j < LANES; ++j) v[j] = h[j];
    __stcs(y + i, packed);
}

extern "C" int leaky(const void* x, const void* decay, void* y, int count, int steps, cudaStream_t stream) {
    if (steps != STEPS || count % (LANES * THREADS)) return cudaErrorInvalidValue;
    leaky_kernel<<<count / (LANES * THREADS), THREADS, 0, stream>>>((const uint4*)x, (const uint4*)decay, (uint4*)y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(steps, dtype=torch.bfloat16))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.leaky(x, self.decay, y, x.numel(), self.decay.numel())
        return y
