# defect: cpu_strided_access | task: transpose_add | summary: a matrix read down its columns
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int transpose_add(const float* __restrict__ x, const float* __restrict__ z, float* __restrict__ y, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < dim; ++i)
        for (int64_t j = 0; j < dim; ++j) y[i * dim + j] = x[j * dim + i] + z[i * dim + j];
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x, z):
        y = torch.empty_like(z)
        lib.transpose_add(x, z, y, x.shape[0])
        return y
