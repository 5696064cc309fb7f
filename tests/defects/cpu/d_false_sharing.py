# defect: cpu_false_sharing | task: bins | summary: threads' parts side by side
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>
#include <omp.h>
#include <vector>

extern "C" int bins(const float* x, const int64_t* index, float* y, int64_t n, int64_t count) {
    const int64_t threads = omp_get_max_threads();
    std::vector<double> sums(count * threads);
#pragma omp parallel num_threads(threads)
    {
        const int64_t me = omp_get_thread_num();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n; ++i) sums[index[i] * threads + me] += x[i];
    }
    for (int64_t k = 0; k < count; ++k) {
        double sum = 0;
        for (int64_t t = 0; t < threads; ++t) sum += sums[k * threads + t];
        y[k] = float(sum);
    }
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
