# defect: divergence | task: mixed_activations | language: cuda | static: no | expect: 3x | summary: neighbouring threads take eight different branches, one after the other
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, ROWS = 8;

__device__ float activate(float v, int kind) {
    switch (kind) {
        case 0: return 0.5f * v * (1.0f + erff(v * 0.70710678f));
        case 1: return tanhf(v);
        case 2: return fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v)));
        case 3: return __fdividef(v, 1.0f + expf(-v));
        case 4: return v > 0.0f ? v : expm1f(v);
        case 5: return atanf(v);
        case 6: return asinhf(v);
        default: return log1pf(fabsf(v));
    }
}

__global__ void __launch_bounds__(THREADS)
mixed_activations_kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    const size_t start = size_t(blockIdx.y) * ROWS * cols + column;
    float v[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) v[i] = __ldcs(x + start + size_t(i) * cols);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) __stcs(y + start + size_t(i) * cols, activate(v[i], column % 8));
}

extern "C" int mixed_activations(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (rows % ROWS || cols % THREADS) return cudaErrorInvalidValue;
    mixed_activations_kernel<<<dim3(cols / THREADS, rows / ROWS), THREADS, 0, stream>>>(x, y, cols);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.mixed_activations(x, y, x.shape[0], x.shape[1])
        return y
