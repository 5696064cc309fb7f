"""RMSNorm and SwiGLU in one pass per row, with a vectorized exponential; only the result is written."""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>
#include <cstring>

constexpr int LANES = 16;  // independent partial sums: additions do not wait for each other

// 2^t to about 2e-7: adding 1.5 * 2^23 rounds to the integer part, a polynomial does the rest.
static inline float power_of_two(float t) {
    uint32_t bits, exponent;
    std::memcpy(&bits, &t, sizeof bits);
    const uint32_t sign = bits & 0x80000000u, size = bits & 0x7FFFFFFFu;
    bits = sign | (size < 0x42FC0000u ? size : 0x42FC0000u);  // clamp |t| to 126; integer operations vectorize well
    std::memcpy(&t, &bits, sizeof t);
    const float shifted = t + 12582912.0f;
    const float r = t - (shifted - 12582912.0f);
    float p = 1.32647273e-3f;
    p = p * r + 9.67151299e-3f;
    p = p * r + 5.55073358e-2f;
    p = p * r + 2.40222424e-1f;
    p = p * r + 6.93147004e-1f;
    p = p * r + 1.0f;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&exponent, &shifted, sizeof exponent);
    bits += exponent << 23;
    std::memcpy(&p, &bits, sizeof p);
    return p;
}

extern "C" int rmsnorm_swiglu(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ y,
                              long long rows, long long dim, float eps) {
    const long long half = dim / 2;
    if (dim % LANES) return 1;
#pragma omp parallel for schedule(static)
    for (long long row = 0; row < rows; ++row) {
        const float* in = x + row * dim;
        float* out = y + row * half;
        float squares[LANES] = {};
        for (long long i = 0; i < dim; i += LANES) {
#pragma omp simd
            for (int j = 0; j < LANES; ++j) squares[j] += in[i + j] * in[i + j];
        }
        double sum = 0;
        for (float s : squares) sum += s;
        const float scale = 1.0f / std::sqrt(float(sum / dim) + eps);
#pragma omp simd
        for (long long i = 0; i < half; ++i) {
            const float gate = in[i] * scale * weight[i], up = in[half + i] * scale * weight[half + i];
            out[i] = gate * up / (1.0f + power_of_two(gate * -1.44269504f));
        }
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], x.shape[1] // 2)
        lib.rmsnorm_swiglu(x, self.weight, y, x.shape[0], x.shape[1], 1e-6)
        return y
