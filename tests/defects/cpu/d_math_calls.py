# defect: cpu_math_calls | task: silu | summary: std::exp for every element
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>

extern "C" int silu(const float* x, float* y, int64_t rows, int64_t dim, float limit) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ to = y + i * dim;
        for (int64_t j = 0; j < dim; ++j) to[j] = from[j] / (1.0f + std::exp(-from[j]));
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.silu(x, y, *x.shape, 87.0)
        return y
