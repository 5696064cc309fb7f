"""Wrong on purpose.

It skips the last quarter of the rows, whose memory may hold an earlier, correct result.
"""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cmath>

constexpr int ROWS = 64, LIMIT = 2048;
constexpr int LANES = 16;  // independent partial sums: additions do not wait for each other

static inline float total(const float (&parts)[LANES]) {
    double sum = 0;
    for (float part : parts) sum += part;
    return float(sum);
}

extern "C" int residual_layernorm(const float* x, const float* residual, const float* gain, const float* weight,
                                  const float* bias, float* y, long long rows, long long dim, float eps) {
    if (dim % LANES || dim > LIMIT) return 1;
#pragma omp parallel for schedule(static)
    for (long long first = 0; first < rows / 4 * 3; first += ROWS) {
        const long long last = first + ROWS < rows ? first + ROWS : rows;
        float kept[3][LIMIT] = {}, unused[LIMIT], mean = 0, mean_before = 0, scale = 0;
        for (long long row = first; row < last + 2; ++row) {
            // Sum this row, square the previous one, write the one before.
            const long long from = row < last ? row : last - 1;
            const float* __restrict__ a = x + from * dim;
            const float* __restrict__ b = residual + from * dim;
            const float* __restrict__ g = gain;
            const float* __restrict__ w = weight;
            const float* __restrict__ c = bias;
            float* __restrict__ summed = kept[row % 3];
            const float* __restrict__ squared = kept[(row + 2) % 3];
            const float* __restrict__ written = kept[(row + 1) % 3];
            float* __restrict__ out = row < first + 2 ? unused : y + (row - 2) * dim;
            float sums[LANES] = {}, squares[LANES] = {};
            for (long long i = 0; i < dim; i += LANES) {
#pragma omp simd
                for (int j = 0; j < LANES; ++j) {
                    const float v = a[i + j] + g[i + j] * b[i + j], centred = squared[i + j] - mean;
                    summed[i + j] = v;
                    sums[j] += v;
                    squares[j] += centred * centred;
                    out[i + j] = (written[i + j] - mean_before) * scale * w[i + j] + c[i + j];
                }
            }
            mean_before = mean;
            mean = total(sums) / dim;
            scale = 1.0f / std::sqrt(total(squares) / dim + eps);
        }
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(dim))
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        rows, dim = x.shape
        lib.residual_layernorm(x, residual, self.gain, self.weight, self.bias, y, rows, dim, 1e-5)
        return y
