# defect: barrier_stall | task: row_energy | language: cuda | static: no | expect: 3x | summary: a whole tree of sums, with a barrier at each level, for every 1024 values instead of once a row
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int COLS = 8192, THREADS = 1024;

__global__ void __launch_bounds__(THREADS, 2) row_energy_kernel(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float tree[THREADS];
    const int t = threadIdx.x;
    const float* row = x + size_t(blockIdx.x) * COLS;
    float sum = 0, next = __ldcs(row + t);
#pragma unroll 1
    for (int base = 0; base < COLS; base += THREADS) {
        tree[t] = next * next;
        if (base + THREADS < COLS) next = __ldcs(row + base + THREADS + t);
        __syncthreads();
#pragma unroll
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (t < half) tree[t] += tree[t + half];
            __syncthreads();
        }
        sum += tree[0];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = sum * (1.0f / COLS);
}

extern "C" int row_energy(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols != COLS) return cudaErrorInvalidValue;
    row_energy_kernel<<<rows, THREADS, 0, stream>>>(x, y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device)
        lib.row_energy(x, y, x.shape[0], x.shape[1])
        return y
