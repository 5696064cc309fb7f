# defect: bank_conflicts | task: transpose | language: cuda | static: no | expect: 2x | summary: the columns of an unpadded 32x32 tile all lie in one bank
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int TILE = 32, LINES = 8;

__global__ void __launch_bounds__(TILE * LINES)
transpose_kernel(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
    __shared__ float tile[TILE][TILE];
    const int row = blockIdx.y * TILE, col = blockIdx.x * TILE;
#pragma unroll
    for (int i = 0; i < TILE; i += LINES) {
        tile[i + threadIdx.y][threadIdx.x] = __ldcs(x + size_t(row + i + threadIdx.y) * cols + col + threadIdx.x);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i += LINES) {
        __stcs(y + size_t(col + i + threadIdx.y) * rows + row + threadIdx.x, tile[threadIdx.x][i + threadIdx.y]);
    }
}

extern "C" int transpose(const float* x, float* y, int rows, int cols, cudaStream_t stream) {
    if (rows % TILE || cols % TILE) return cudaErrorInvalidValue;
    transpose_kernel<<<dim3(cols / TILE, rows / TILE), dim3(TILE, LINES), 0, stream>>>(x, y, rows, cols);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[1], x.shape[0], device=x.device)
        lib.transpose(x, y, x.shape[0], x.shape[1])
        return y
