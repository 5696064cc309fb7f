"""x + residual and LayerNorm a row at a time: the sum stays in the first-level cache between the three short loops."""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>

constexpr int LANES = 16;  // independent partial sums, so that an addition need not wait for the one before it

static inline float total(const float (&parts)[LANES]) {
    double sum = 0;
    for (float part : parts) sum += part;
    return float(sum);
}

extern "C" int residual_layernorm(const float* __restrict__ x, const float* __restrict__ residual,
                                  const float* __restrict__ weight, const float* __restrict__ bias,
                                  float* __restrict__ y, long long rows, long long dim, float eps) {
    if (dim % LANES) return 1;
#pragma omp parallel for schedule(static)
    for (long long row = 0; row < rows; ++row) {
        const float* a = x + row * dim;
        const float* b = residual + row * dim;
        float* out = y + row * dim;
        float sums[LANES] = {}, squares[LANES] = {};
        for (long long i = 0; i < dim; i += LANES) {
#pragma omp simd
            for (int j = 0; j < LANES; ++j) {
                const float v = a[i + j] + b[i + j];
                out[i + j] = v;
                sums[j] += v;
            }
        }
        const float mean = total(sums) / dim;
        for (long long i = 0; i < dim; i += LANES) {
#pragma omp simd
            for (int j = 0; j < LANES; ++j) squares[j] += (out[i + j] - mean) * (out[i + j] - mean);
        }
        const float scale = 1.0f / std::sqrt(total(squares) / dim + eps);
#pragma omp simd
        for (long long i = 0; i < dim; ++i) out[i] = (out[i] - mean) * scale * weight[i] + bias[i];
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        lib.residual_layernorm(x, residual, self.weight, self.bias, y, x.shape[0], x.shape[1], 1e-5)
        return y
