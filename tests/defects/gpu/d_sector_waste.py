# defect: sector_waste | task: complex_energy | language: cuda | static: no | expect: 2x | summary: a block takes one part of interleaved pairs, so that half of every sector is thrown away
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int COLS = 4096, THREADS = 256, WARPS = THREADS / 32;

__device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

// Block (row, part) reads every second float of its row.
__global__ void __launch_bounds__(THREADS) complex_energy_kernel(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float sums[WARPS];
    const float* from = x + size_t(blockIdx.x) * COLS * 2 + blockIdx.y;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < COLS / THREADS; ++i) {
        const float v = __ldg(from + 2 * (i * THREADS + threadIdx.x));
        sum += v * v;
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[w];
        y[blockIdx.x * 2 + blockIdx.y] = sum * (1.0f / COLS);
    }
}

extern "C" int complex_energy(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols != COLS) return cudaErrorInvalidValue;
    complex_energy_kernel<<<dim3(rows, 2), THREADS, 0, stream>>>(x, y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], 2, device=x.device)
        lib.complex_energy(x, y, x.shape[0], x.shape[1])
        return y
