# defect: cpu_indirect_access | task: affine | summary: columns in the order of a table
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int affine(const float* x, const float* weight, const float* bias, const float* residual, float* y,
                      const int32_t* order, int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float *__restrict__ a = x + i * dim, *__restrict__ r = residual + i * dim;
        float* __restrict__ to = y + i * dim;
        for (int64_t j = 0; j < dim; ++j) {
            const int32_t k = order[j];
            const float v = a[k] * weight[k] + bias[k];
            to[k] = (v > 0 ? v : 0) + r[k];
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
        self.order = torch.randperm(size).to(torch.int32)

    def forward(self, x, residual):
        y = torch.empty_like(x)
        lib.affine(x, self.weight, self.bias, residual, y, self.order, *x.shape)
        return y
