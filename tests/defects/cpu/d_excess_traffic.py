# defect: cpu_excess_traffic | task: affine | summary: four passes over memory
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int affine(const float* x, const float* weight, const float* bias, const float* residual, float* __restrict__ scaled,
                      float* __restrict__ shifted, float* __restrict__ y, int64_t rows, int64_t dim) {
    const int64_t n = rows * dim;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < dim; ++j) scaled[i * dim + j] = x[i * dim + j] * weight[j];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < dim; ++j) shifted[i * dim + j] = scaled[i * dim + j] + bias[j];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) scaled[i] = shifted[i] > 0 ? shifted[i] : 0;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) y[i] = scaled[i] + residual[i];
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.bias = nn.Parameter(torch.randn(size))
        self.scratch = None

    def forward(self, x, residual):
        if self.scratch is None:
            self.scratch = torch.empty_like(x), torch.empty_like(x)
        y = torch.empty_like(x)
        lib.affine(x, self.weight, self.bias, residual, *self.scratch, y, *x.shape)
        return y
