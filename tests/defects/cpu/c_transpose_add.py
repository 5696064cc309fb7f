# control | task: transpose_add | summary: in tiles, through a block that stays in the first cache
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

constexpr int64_t TILE = 32;  // dim is a multiple of it

extern "C" int transpose_add(const float* x, const float* z, float* y, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < dim; i += TILE) {
        for (int64_t j = 0; j < dim; j += TILE) {
            float block[TILE][TILE + 4];
            for (int64_t b = 0; b < TILE; ++b)
                for (int64_t a = 0; a < TILE; ++a) block[b][a] = x[(j + b) * dim + i + a];
            for (int64_t a = 0; a < TILE; ++a) {
                const float* __restrict__ add = z + (i + a) * dim + j;
                float* __restrict__ to = y + (i + a) * dim + j;
                for (int64_t b = 0; b < TILE; ++b) to[b] = add[b] + block[b][a];
            }
        }
    }
    return dim % TILE;
}
""")


class ModelNew(nn.Module):
    def forward(self, x, z):
        y = torch.empty_like(z)
        lib.transpose_add(x, z, y, x.shape[0])
        return y
