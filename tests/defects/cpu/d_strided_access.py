# defect: cpu_strided_access | task: column_mean | summary: column by column
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int column_mean(const float* x, float* y, int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < dim; ++j) {
        float parts[4] = {};
        for (int64_t i = 0; i < rows; i += 4)
            for (int k = 0; k < 4; ++k) parts[k] += x[(i + k) * dim + j];
        y[j] = ((parts[0] + parts[1]) + (parts[2] + parts[3])) / rows;
    }
    return rows % 4;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.new_zeros(x.shape[1])
        lib.column_mean(x, y, *x.shape)
        return y
