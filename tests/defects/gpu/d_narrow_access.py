# defect: narrow_access | task: bias_relu_bf16 | language: cuda | static: yes | expect: 2.5x | summary: one bfloat16 a thread and step: two bytes an access, few bytes in flight
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cuda_bf16.h>

constexpr int COLS = 8192, THREADS = 256;

__global__ void __launch_bounds__(THREADS)
bias_relu_kernel(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ bias,
                 __nv_bfloat16* __restrict__ y, int n) {
#pragma unroll 1
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        const float v = __bfloat162float(x[i]) + __bfloat162float(bias[i % COLS]);
        y[i] = __float2bfloat16(fmaxf(v, 0.0f));
    }
}

extern "C" int bias_relu(const void* x, const void* bias, void* y, int rows, int cols, cudaStream_t stream) {
    if (cols != COLS) return cudaErrorInvalidValue;
    int sms = 0;
    if (auto error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0)) return error;
    bias_relu_kernel<<<sms * (2048 / THREADS), THREADS, 0, stream>>>(
        (const __nv_bfloat16*)x, (const __nv_bfloat16*)bias, (__nv_bfloat16*)y, rows * cols);
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
