# defect: cpu_parallel_overhead | task: affine | summary: a parallel region for each row
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int affine(const float* x, const float* weight, const float* bias, const float* residual, float* y,
                      int64_t rows, int64_t dim) {
    for (int64_t i = 0; i < rows; ++i) {
        const float *__restrict__ a = x + i * dim, *__restrict__ r = residual + i * dim;
        float* __restrict__ to = y + i * dim;
#pragma omp parallel for simd schedule(static)
        for (int64_t j = 0; j < dim; ++j) {
            const float v = a[j] * weight[j] + bias[j];
            to[j] = (v > 0 ? v : 0) + r[j];
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

    def forward(self, x, residual):
        y = torch.empty_like(x)
        lib.affine(x, self.weight, self.bias, residual, y, *x.shape)
        return y
