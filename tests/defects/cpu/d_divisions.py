# defect: cpu_divisions | task: standardise | summary: three divisions by constants of the channel
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

extern "C" int standardise(const float* x, const float* span, const float* mean, const float* deviation, float* y, int64_t channels,
                           int64_t pixels) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < channels; ++i) {
        const float* __restrict__ from = x + i * pixels;
        float* __restrict__ to = y + i * pixels;
        const float m = mean[i], d = deviation[i], s = *span;
        for (int64_t j = 0; j < pixels; ++j) to[j] = (from[j] / s - m) / d / s;
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mean = nn.Parameter(torch.rand(channels))
        self.deviation = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x, span):
        y = torch.empty_like(x)
        lib.standardise(x, span, self.mean, self.deviation, y, *x.shape)
        return y
