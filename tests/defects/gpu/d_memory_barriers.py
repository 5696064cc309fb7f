# defect: memory_barriers | task: gelu_bias | language: cuda | static: yes | expect: 2x | summary: a fence for the whole system after every store, although nobody waits for the data
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, ROWS = 16;

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
    float4 next = __ldcs(x + start);
#pragma unroll 1
    for (int i = 0; i < ROWS; ++i) {
        const float4 v = next;
        if (i + 1 < ROWS) next = __ldcs(x + start + size_t(i + 1) * vectors);
        y[start + size_t(i) * vectors] =
            make_float4(gelu(v.x + b.x), gelu(v.y + b.y), gelu(v.z + b.z), gelu(v.w + b.w));
        __threadfence_system();
    }
}

extern "C" int gelu_bias(const float* x, const float* bias, float* y, int rows, int cols, cudaStream_t stream) {
    if (rows % ROWS || cols % (4 * THREADS)) return cudaErrorInvalidValue;
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
