# defect: cpu_divisions | task: affine | summary: a remainder for every element
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int affine(const float* x, const float* weight, const float* bias, const float* residual, float* y,
                      int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * dim; ++i) {
        const float v = x[i] * weight[i % dim] + bias[i % dim];
        y[i] = (v > 0 ? v : 0) + residual[i];
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
