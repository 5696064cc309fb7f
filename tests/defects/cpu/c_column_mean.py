# control | task: column_mean | summary: row by row into one row of sums for each thread
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>
#include <vector>

extern "C" int column_mean(const float* x, float* y, int64_t rows, int64_t dim) {
#pragma omp parallel
    {
        std::vector<float> sums(dim);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows / 4; ++i) {
            const float *__restrict__ from = x + 4 * i * dim, *__restrict__ next = from + dim;
            const float *__restrict__ third = next + dim, *__restrict__ last = third + dim;
            float* __restrict__ to = sums.data();
            for (int64_t j = 0; j < dim; ++j) to[j] += (from[j] + next[j]) + (third[j] + last[j]);
        }
#pragma omp critical
        for (int64_t j = 0; j < dim; ++j) y[j] += sums[j] / rows;
    }
    return rows % 4;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.new_zeros(x.shape[1])
        lib.column_mean(x, y, *x.shape)
        return y
