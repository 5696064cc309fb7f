# defect: cpu_imbalance | task: lower_product | summary: growing rows in equal blocks
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

constexpr int LANES = 16;

extern "C" int lower_product(const float* a, const float* __restrict__ x, float* y, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < dim; ++i) {
        const float* __restrict__ row = a + i * dim;
        const int64_t whole = (i + 1) / LANES * LANES;
        float parts[LANES] = {}, sum = 0;
        for (int64_t j = 0; j < whole; j += LANES)
            for (int k = 0; k < LANES; ++k) parts[k] += row[j + k] * x[j + k];
        for (int64_t j = whole; j <= i; ++j) sum += row[j] * x[j];
        for (float part : parts) sum += part;
        y[i] = sum;
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, a, x):
        y = torch.empty_like(x)
        lib.lower_product(a, x, y, len(x))
        return y
