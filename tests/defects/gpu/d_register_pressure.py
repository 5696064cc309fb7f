# defect: register_pressure/occupancy_limiter | task: recurrence | language: cuda | static: no | expect: 2.5x | summary: a thread keeps its whole sequence in registers, so that eight warps are left to hide a chain of dependent steps
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int STEPS = 160, THREADS = 256;

__device__ float sigmoid(float v) { return __fdividef(1.0f, 1.0f + expf(-v)); }
__device__ float hyperbolic_tangent(float v) { return 1.0f - __fdividef(2.0f, 1.0f + expf(2.0f * v)); }

__global__ void __launch_bounds__(THREADS)
recurrence_kernel(const float* __restrict__ x, float* __restrict__ y, int sequences) {
    const int sequence = blockIdx.x * THREADS + threadIdx.x;
    float v[STEPS];
#pragma unroll
    for (int t = 0; t < STEPS; ++t) v[t] = __ldcs(x + size_t(t) * sequences + sequence);
    float mean = 0;
#pragma unroll
    for (int t = 0; t < STEPS; ++t) mean += v[t];
    mean /= STEPS;
    float h = 0;
#pragma unroll
    for (int t = 0; t < STEPS; ++t) {
        const float now = hyperbolic_tangent(v[t] - mean + h);
        h += sigmoid(now) * (now - h);
    }
    y[sequence] = h;
}

extern "C" int recurrence(const float* x, float* y, int steps, int sequences, cudaStream_t stream) {
    if (steps != STEPS || sequences % THREADS) return cudaErrorInvalidValue;
    recurrence_kernel<<<sequences / THREADS, THREADS, 0, stream>>>(x, y, sequences);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[1], device=x.device)
        lib.recurrence(x, y, x.shape[0], x.shape[1])
        return y
