# defect: cpu_repeated_passes | task: layernorm | summary: three loops over a row, and memory rests during two
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>

constexpr int LANES = 16;  // partial sums, so that additions need not wait for each other

extern "C" int layernorm(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t dim, float eps) {
    if (dim % LANES) return 1;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ to = y + i * dim;
        float sums[LANES] = {}, squares[LANES] = {}, mean = 0, variance = 0;
        for (int64_t j = 0; j < dim; j += LANES)
            for (int k = 0; k < LANES; ++k) sums[k] += from[j + k];
        for (float part : sums) mean += part / dim;
        for (int64_t j = 0; j < dim; j += LANES)
            for (int k = 0; k < LANES; ++k) squares[k] += (from[j + k] - mean) * (from[j + k] - mean);
        for (float part : squares) variance += part / dim;
        const float scale = 1.0f / std::sqrt(variance + eps);
        for (int64_t j = 0; j < dim; ++j) to[j] = (from[j] - mean) * scale * weight[j] + bias[j];
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.randn(size))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.layernorm(x, self.weight, self.bias, y, *x.shape, 1e-5)
        return y
