# control | task: bias_relu_bf16 | language: cuda | summary: eight bfloat16 a load, four loads in flight, the bias kept for four rows
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cuda_bf16.h>

constexpr int THREADS = 256, ROWS = 4, LANES = 8;  // eight bfloat16 in 16 bytes

__device__ uint4 bias_relu(uint4 x, uint4 bias) {
    __nv_bfloat162* v = (__nv_bfloat162*)&x;
    const __nv_bfloat162* b = (const __nv_bfloat162*)&bias;
#pragma unroll
    for (int i = 0; i < LANES / 2; ++i) v[i] = __hmax2(__hadd2(v[i], b[i]), __nv_bfloat162(0.0f, 0.0f));
    return x;
}

__global__ void __launch_bounds__(THREADS)
bias_relu_kernel(const uint4* __restrict__ x, const uint4* __restrict__ bias, uint4* __restrict__ y, int vectors) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    const size_t start = size_t(blockIdx.y) * ROWS * vectors + column;
    const uint4 b = __ldg(bias + column);
    uint4 v[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) v[i] = __ldcs(x + start + size_t(i) * vectors);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) __stcs(y + start + size_t(i) * vectors, bias_relu(v[i], b));
}

extern "C" int bias_relu(const void* x, const void* bias, void* y, int rows, int cols, cudaStream_t stream) {
    if (rows % ROWS || cols % (LANES * THREADS)) return cudaErrorInvalidValue;
    bias_relu_kernel<<<dim3(cols / LANES / THREADS, rows / ROWS), THREADS, 0, stream>>>(
        (const uint4*)x, (const uint4*)bias, (uint4*)y, cols / LANES);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols, dtype=torch.bfloat16))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.bias_relu(x, self.bias, y, x.shape[0], x.shape[1])
        return y
