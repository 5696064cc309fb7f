# defect: integer_arithmetic | task: channel_affine | language: cuda | static: yes | expect: 2x | summary: 64-bit divisions and remainders find channel and line anew for every element
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
#include <cstdint>

constexpr int THREADS = 256, ITEMS = 4;

__global__ void __launch_bounds__(THREADS)
channel_affine_kernel(const float* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
                      float* __restrict__ y, int64_t channels, int64_t height, int64_t width) {
    const int64_t start = int64_t(blockIdx.x) * THREADS * ITEMS + threadIdx.x;
    float v[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) v[i] = __ldcs(x + start + i * THREADS);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int64_t place = start + i * THREADS;
        const int64_t line = place / width % height, channel = place / (width * height) % channels;
        __stcs(y + place, v[i] * __ldg(scale + channel) + __ldg(shift + line));
    }
}

extern "C" int channel_affine(const float* x, const float* scale, const float* shift, float* y, int64_t batch,
                              int64_t channels, int64_t height, int64_t width, cudaStream_t stream) {
    const int64_t count = batch * channels * height * width;
    if (count % (THREADS * ITEMS)) return cudaErrorInvalidValue;
    channel_affine_kernel<<<count / (THREADS * ITEMS), THREADS, 0, stream>>>(x, scale, shift, y, channels, height, width);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, channels, height):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.shift = nn.Parameter(torch.randn(height, 1))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.channel_affine(x, self.scale, self.shift, y, *x.shape)
        return y
