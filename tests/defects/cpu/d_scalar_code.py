# defect: cpu_scalar_code | task: silu | summary: a check for NaN leaves the loop
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>

static inline float exponential(float x) {  // of -87 to 87, to 2e-7, without a branch, so that it becomes vector code
    const float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * __builtin_bit_cast(float, (int(n) + 127) << 23);
}

static inline float silu(float x, float limit) {
    float z = x < limit ? x : limit;
    z = z > -limit ? z : -limit;
    return x / (1.0f + exponential(-z));
}

extern "C" int silu(const float* x, float* y, int64_t rows, int64_t dim, float limit) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ to = y + i * dim;
        for (int64_t j = 0; j < dim; ++j) {
            const float v = silu(from[j], limit);
            to[j] = v;
            if (v != v) break;
        }
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.silu(x, y, *x.shape, 87.0)
        return y
