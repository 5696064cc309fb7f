# control | task: gelu_bias | language: cuda | summary: Bias and tanh GELU in one pass: a thread keeps four biases in registers for four rows
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, ROWS = 4;

// 0.5 * (1 + tanh(u)) is the logistic function of 2u.
__device__ float gelu(float v) {
    const float twice_u = 1.5957691216057308f * (v + 0.044715f * v * v * v);
    return __fdividef(v, 1.0f + expf(-twice_u));
}

__global__ void __launch_bounds__(THREADS)
gelu_bias_kernel(const float4* __restrict__ x, const float4* __restrict__ bias, float4* __restrict__ y, int vectors) {
    const int column = blockIdx.x * THREADS + threadIdx.x;
    const size_t start = size_t(blockIdx.y) * ROWS * vectors + column;
    const float4 b = __ldg(bias + column);
    float4 v[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) v[i] = __ldcs(x + start + size_t(i) * vectors);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        __stcs(y + start + size_t(i) * vectors,
               make_float4(gelu(v[i].x + b.x), gelu(v[i].y + b.y), gelu(v[i].z + b.z), gelu(v[i].w + b.w)));
    }
}

extern "C" int gelu_bias(const float* x, const float* bias, float* y, int rows, int cols, cudaStream_t stream) {
    if (cols % (4 * THREADS) || rows % ROWS) return cudaErrorInvalidValue;
    gelu_bias_kernel<<<dim3(cols / 4 / THREADS, rows / ROWS), THREADS, 0, stream>>>(
        (const float4*)x, (const float4*)bias, (float4*)y, cols / 4);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.gelu_bias(x, self.bias, y, x.shape[0], x.shape[1])
        return y
