# control | task: matmul | summary: tiles in registers, packed columns
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cpp(r"""
#include <cstdint>

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
constexpr int64_t ROWS = 6, COLUMNS = 16, DEEP = 256;  // 6 x 16 partial results in registers
constexpr int64_t LANES = BYTES / 4, VECTORS = COLUMNS / LANES;
typedef float Vector __attribute__((vector_size(BYTES), aligned(4)));

template <int64_t COUNT>
static inline void tile(const float* a, const float* packed, float* c, int64_t dim) {
    Vector sums[COUNT][VECTORS] = {};
    for (int64_t k = 0; k < DEEP; ++k) {
        const Vector* columns = (const Vector*)(packed + k * COLUMNS);
#pragma GCC unroll 8
        for (int64_t i = 0; i < COUNT; ++i)
#pragma GCC unroll 4
            for (int64_t v = 0; v < VECTORS; ++v) sums[i][v] += a[i * dim + k] * columns[v];
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < COUNT; ++i)
#pragma GCC unroll 4
        for (int64_t v = 0; v < VECTORS; ++v) ((Vector*)(c + i * dim))[v] += sums[i][v];
}

extern "C" int matmul(const float* a, const float* b, float* c, int64_t dim) {
    if (dim % DEEP) return 1;
#pragma omp parallel for schedule(dynamic)
    for (int64_t j = 0; j < dim; j += COLUMNS) {
        float packed[DEEP * COLUMNS];
        for (int64_t k = 0; k < dim; k += DEEP) {
            for (int64_t d = 0; d < DEEP; ++d)
                for (int64_t l = 0; l < COLUMNS; ++l) packed[d * COLUMNS + l] = b[(k + d) * dim + j + l];
            int64_t i = 0;
            for (; i + ROWS <= dim; i += ROWS) tile<ROWS>(a + i * dim + k, packed, c + i * dim + j, dim);
            for (; i < dim; ++i) tile<1>(a + i * dim + k, packed, c + i * dim + j, dim);
        }
    }
    return 0;
}
""")


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.zeros_like(a)
        lib.matmul(a, b, c, len(a))
        return c
