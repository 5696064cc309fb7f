# control | task: mean_square | summary: partial sums in registers, one addition to the total for each run
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

constexpr int LANES = 16, RUN = 4096;

extern "C" int mean_square(const float* x, const float* z, float* y, int64_t n) {
    if (n % RUN) return 1;
    double sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < n; i += RUN) {
        const float *__restrict__ a = x + i, *__restrict__ b = z + i;
        float parts[LANES] = {};
        for (int64_t j = 0; j < RUN; j += LANES)
            for (int k = 0; k < LANES; ++k) parts[k] += (a[j + k] - b[j + k]) * (a[j + k] - b[j + k]);
        for (float part : parts) sum += part;
    }
    *y = float(sum / n);
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, x, z):
        y = x.new_empty(())
        lib.mean_square(x, z, y, x.numel())
        return y
