# defect: cpu_false_sharing | task: bins | summary: an atomic addition for every element
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int bins(const float* x, const int64_t* index, float* y, int64_t n, int64_t count) {
    double sums[4096] = {};
    if (count > 4096) return 1;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; ++i) {
#pragma omp atomic
        sums[index[i]] += x[i];
    }
    for (int64_t k = 0; k < count; ++k) y[k] = float(sums[k]);
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, x, index):
        y = x.new_zeros(self.count)
        lib.bins(x, index, y, x.numel(), self.count)
        return y
