# defect: cpu_double_precision | task: silu | summary: a polynomial in double
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>

static inline double exponential(double x) {
    const double shifted = x * 1.4426950408889634 + 6755399441055744.0, n = shifted - 6755399441055744.0;
    const double r = x - n * 0.6931471805599453;
    double p = 1.9875691500e-4;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    return (p * r * r + r + 1.0) * __builtin_bit_cast(double, (int64_t(n) + 1023) << 52);
}

static inline float silu(double x, double limit) {
    double z = x < limit ? x : limit;
    z = z > -limit ? z : -limit;
    return x / (1.0 + exponential(-z));
}

extern "C" int silu(const float* x, float* y, int64_t rows, int64_t dim, float limit) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ to = y + i * dim;
        for (int64_t j = 0; j < dim; ++j) to[j] = silu(from[j], limit);
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.silu(x, y, *x.shape, 87.0)
        return y
