# defect: missing_reuse | task: max_pool | language: cuda | static: no | expect: 5x | summary: every pixel fetches all 49 of its window, although neighbours share 42 of them
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int RADIUS = 3, SPAN = 2 * RADIUS + 1, WIDE = 32, HIGH = 8;

// Places beyond the edge are moved onto it, which changes no maximum.
__global__ void __launch_bounds__(WIDE * HIGH)
max_pool_kernel(const float* __restrict__ x, float* __restrict__ y, int height, int width) {
    const int col = blockIdx.x * WIDE + threadIdx.x, row = blockIdx.y * HIGH + threadIdx.y;
    const float* plane = x + size_t(blockIdx.z) * height * width;
    int columns[SPAN];
#pragma unroll
    for (int j = 0; j < SPAN; ++j) columns[j] = min(max(col + j - RADIUS, 0), width - 1);
    float largest = plane[row * width + col];
#pragma unroll
    for (int i = 0; i < SPAN; ++i) {
        const float* line = plane + min(max(row + i - RADIUS, 0), height - 1) * width;
#pragma unroll
        for (int j = 0; j < SPAN; ++j) largest = fmaxf(largest, line[columns[j]]);
    }
    y[size_t(blockIdx.z) * height * width + row * width + col] = largest;
}

extern "C" int max_pool(const float* x, float* y, int planes, int height, int width, cudaStream_t stream) {
    if (height % HIGH || width % WIDE) return cudaErrorInvalidValue;
    max_pool_kernel<<<dim3(width / WIDE, height / HIGH, planes), dim3(WIDE, HIGH), 0, stream>>>(x, y, height, width);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        batch, channels, height, width = x.shape
        lib.max_pool(x, y, batch * channels, height, width)
        return y
