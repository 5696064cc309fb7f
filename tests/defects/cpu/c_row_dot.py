# control | task: row_dot | summary: sixteen partial sums a row, so that the sum is vector code
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

constexpr int LANES = 16;  // dim is a multiple of it

extern "C" int row_dot(const float* x, const float* z, float* y, int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
        const float *__restrict__ a = x + i * dim, *__restrict__ b = z + i * dim;
        float parts[LANES] = {}, sum = 0;
        for (int64_t j = 0; j < dim; j += LANES)
            for (int k = 0; k < LANES; ++k) parts[k] += a[j + k] * b[j + k];
        for (float part : parts) sum += part;
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
