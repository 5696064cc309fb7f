# defect: uncoalesced_access | task: row_norm | language: cuda | static: no | expect: 4x | summary: a thread walks along its own row, so that a warp touches 32 rows at once
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int COLS = 256, THREADS = 256;

__global__ void __launch_bounds__(THREADS) row_norm_kernel(const float* __restrict__ x, float* __restrict__ y) {
    const int row = blockIdx.x * THREADS + threadIdx.x;
    const float* from = x + size_t(row) * COLS;
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < COLS; ++i) sum += from[i] * from[i];
    y[row] = sqrtf(sum);
}

extern "C" int row_norm(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols != COLS || rows % THREADS) return cudaErrorInvalidValue;
    row_norm_kernel<<<rows / THREADS, THREADS, 0, stream>>>(x, y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device)
        lib.row_norm(x, y, x.shape[0], x.shape[1])
        return y
