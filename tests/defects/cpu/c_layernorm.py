# control | task: layernorm | summary: mean and variance in one loop, the next row fetched while this one is written
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>

constexpr int LANES = 16, LINE = 16;  // partial sums, so that additions need not wait for each other; floats of a line of memory

extern "C" int layernorm(const float* x, const float* __restrict__ weight, const float* __restrict__ bias, float* y, int64_t rows,
                         int64_t dim, float eps) {
    if (dim % 64) return 1;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ to = y + i * dim;
        float sums[LANES] = {}, squares[LANES] = {}, near = 0;
        for (int k = 0; k < LANES; ++k) near += from[k] / LANES;
        for (int64_t j = 0; j < dim; j += LANES) {
#pragma omp simd
            for (int k = 0; k < LANES; ++k) {
                const float off = from[j + k] - near;
                sums[k] += off;
                squares[k] += off * off;
            }
        }
        double sum = 0, square = 0;
        for (float part : sums) sum += part;
        for (float part : squares) square += part;
        const float mean = near + sum / dim, variance = square / dim - sum / dim * (sum / dim);
        const float scale = 1.0f / std::sqrt(variance + eps);
        for (int64_t j = 0; j < dim; j += 64) {
            for (int64_t line = j; line < j + 64; line += LINE) __builtin_prefetch(from + dim + line);
#pragma omp simd
            for (int64_t k = j; k < j + 64; ++k) to[k] = (from[k] - mean) * scale * weight[k] + bias[k];
        }
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
