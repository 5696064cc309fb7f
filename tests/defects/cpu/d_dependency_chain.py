# defect: cpu_dependency_chain | task: row_dot | summary: one running sum a row
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int row_dot(const float* x, const float* z, float* y, int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float *__restrict__ a = x + i * dim, *__restrict__ b = z + i * dim;
        float sum = 0;
        for (int64_t j = 0; j < dim; ++j) sum += a[j] * b[j];
        y[i] = sum;
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x, z):
        y = x.new_empty(len(x))
        lib.row_dot(x, z, y, *x.shape)
        return y
