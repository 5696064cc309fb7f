"""Cumulative sum down the columns in strips.

A strip's sums stay in the L1 cache, memory is read along rows.
"""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
constexpr long long STRIP = 256;

extern "C" void column_cumsum(const float* x, float* y, long long rows, long long cols) {
#pragma omp parallel for schedule(static)
    for (long long first = 0; first < cols; first += STRIP) {
        const long long width = cols - first < STRIP ? cols - first : STRIP;
        double sums[STRIP] = {};
        for (long long row = 0; row < rows; ++row) {
            const float* in = x + row * cols + first;
            float* out = y + row * cols + first;
#pragma omp simd
            for (long long i = 0; i < width; ++i) {
                sums[i] += in[i];
                out[i] = float(sums[i]);
            }
        }
    }
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.column_cumsum(x, y, x.shape[0], x.shape[1])
        return y
