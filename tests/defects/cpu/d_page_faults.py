# defect: cpu_page_faults | task: weighted_norm | summary: a large temporary at every call
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>
#include <cstdint>
#include <memory>

constexpr int LANES = 16;  // dim is a multiple of it

extern "C" int weighted_norm(const float* x, const float* weight, float* y, int64_t rows, int64_t dim) {
    std::unique_ptr<float[]> weighted(new float[rows * dim]);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float* __restrict__ from = x + i * dim;
        float* __restrict__ kept = weighted.get() + i * dim;
        for (int64_t j = 0; j < dim; ++j) kept[j] = from[j] * weight[j];
        float parts[LANES] = {}, sum = 0;
        for (int64_t j = 0; j < dim; j += LANES)
            for (int k = 0; k < LANES; ++k) parts[k] += kept[j + k] * kept[j + k];
        for (float part : parts) sum += part;
        y[i] = std::sqrt(sum);
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        y = x.new_empty(len(x))
        lib.weighted_norm(x, self.weight, y, *x.shape)
        return y
