# defect: atomics_contention | task: absmax | language: cuda | static: no | expect: 4x | summary: every warp sends its maximum to the same address
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, VECTORS = 1;

// Magnitudes are not negative, so their bits order like integers.
__global__ void __launch_bounds__(THREADS) absmax_kernel(const float4* __restrict__ x, int* __restrict__ y) {
    const size_t start = size_t(blockIdx.x) * THREADS * VECTORS + threadIdx.x;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float4 v = __ldcs(x + start + i * THREADS);
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    atomicMax(y, __float_as_int(largest));
}

extern "C" int absmax(const float* x, float* y, int count, cudaStream_t stream) {
    if (count % (4 * THREADS * VECTORS)) return cudaErrorInvalidValue;
    absmax_kernel<<<count / (4 * THREADS * VECTORS), THREADS, 0, stream>>>((const float4*)x, (int*)y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.zeros((), device=x.device)
        lib.absmax(x, y, x.numel())
        return y
