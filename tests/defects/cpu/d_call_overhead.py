# defect: cpu_call_overhead | task: row_dot | summary: a native call from Python for every row
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

constexpr int LANES = 16;  // dim is a multiple of it

extern "C" int one_dot(const float* __restrict__ a, const float* __restrict__ b, float* y, int64_t dim) {
    float parts[LANES] = {}, sum = 0;
    for (int64_t j = 0; j < dim; j += LANES)
        for (int k = 0; k < LANES; ++k) parts[k] += a[j + k] * b[j + k];
    for (float part : parts) sum += part;
    *y = sum;
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x, z):
        y = x.new_empty(len(x))
        for i in range(len(x)):
            lib.one_dot(x[i], z[i], y[i], x.shape[1])
        return y
