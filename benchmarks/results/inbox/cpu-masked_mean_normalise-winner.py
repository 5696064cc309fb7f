import torch
from kernelpro import runtime

TOKENS = 8   # tune: 4, 8, 16
THREADS = 2  # tune: 1, 2
AHEAD = 0  # tune: 0, 8, 16
BATCH, LENGTH, DIM = 8, 128, 256

lib = runtime.cpp(r"""
#include <arm_neon.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

// acc (+)= sum of TOKENS rows, each times its mask value
template <bool FIRST>
INLINE void add_rows(const float* __restrict__ x, const float* __restrict__ mask,
                     float* __restrict__ acc, long dim)
{
    float m[TOKENS];
    #pragma GCC unroll 16
    for (int r = 0; r < TOKENS; ++r) m[r] = mask[r];
    long d = 0;
    for (; d + 8 <= dim; d += 8) {
        const float* p = x + d;
        float32x4_t a0, a1;
        if (FIRST) {
            a0 = vdupq_n_f32(0.0f);
            a1 = vdupq_n_f32(0.0f);
        } else {
            a0 = vld1q_f32(acc + d);
            a1 = vld1q_f32(acc + d + 4);
        }
        float32x4_t b0 = vdupq_n_f32(0.0f), b1 = vdupq_n_f32(0.0f);
        #pragma GCC unroll 16
        for (int r = 0; r < TOKENS; r += 2) {
            a0 = vfmaq_n_f32(a0, vld1q_f32(p + r * dim), m[r]);
            a1 = vfmaq_n_f32(a1, vld1q_f32(p + r * dim + 4), m[r]);
            b0 = vfmaq_n_f32(b0, vld1q_f32(p + (r + 1) * dim), m[r + 1]);
            b1 = vfmaq_n_f32(b1, vld1q_f32(p + (r + 1) * dim + 4), m[r + 1]);
        }
        vst1q_f32(acc + d, vaddq_f32(a0, b0));
        vst1q_f32(acc + d + 4, vaddq_f32(a1, b1));
    }
    for (; d < dim; ++d) {
        float s = FIRST ? 0.0f : acc[d];
        for (int r = 0; r < TOKENS; ++r) s += x[r * dim + d] * m[r];
        acc[d] = s;
    }
}

static float sum_of(const float* __restrict__ v, long n)
{
    float32x4_t s0 = vdupq_n_f32(0.0f), s1 = s0;
    long i = 0;
    for (; i + 8 <= n; i += 8) {
        s0 = vaddq_f32(s0, vld1q_f32(v + i));
        s1 = vaddq_f32(s1, vld1q_f32(v + i + 4));
    }
    float s = vaddvq_f32(vaddq_f32(s0, s1));
    for (; i < n; ++i) s += v[i];
    return s;
}

// row := row / count, then row / max(|row|, 1e-12)
static void finish(float* __restrict__ row, float count, long dim)
{
    const float inv = 1.0f / count;
    float32x4_t s0 = vdupq_n_f32(0.0f), s1 = s0, s2 = s0, s3 = s0;
    float rest = 0.0f;
    long d = 0;
    for (; d + 16 <= dim; d += 16) {
        const float32x4_t a = vmulq_n_f32(vld1q_f32(row + d), inv);
        const float32x4_t b = vmulq_n_f32(vld1q_f32(row + d + 4), inv);
        const float32x4_t c = vmulq_n_f32(vld1q_f32(row + d + 8), inv);
        const float32x4_t e = vmulq_n_f32(vld1q_f32(row + d + 12), inv);
        s0 = vfmaq_f32(s0, a, a);
        s1 = vfmaq_f32(s1, b, b);
        s2 = vfmaq_f32(s2, c, c);
        s3 = vfmaq_f32(s3, e, e);
        vst1q_f32(row + d, a);
        vst1q_f32(row + d + 4, b);
        vst1q_f32(row + d + 8, c);
        vst1q_f32(row + d + 12, e);
    }
    for (; d < dim; ++d) {
        const float a = row[d] * inv;
        rest += a * a;
        row[d] = a;
    }
    float norm = sqrtf(vaddvq_f32(vaddq_f32(vaddq_f32(s0, s1), vaddq_f32(s2, s3))) + rest);
    norm = norm < 1e-12f ? 1e-12f : norm;   // NaN stays NaN
    const float scale = 1.0f / norm;
    for (d = 0; d + 16 <= dim; d += 16) {
        vst1q_f32(row + d, vmulq_n_f32(vld1q_f32(row + d), scale));
        vst1q_f32(row + d + 4, vmulq_n_f32(vld1q_f32(row + d + 4), scale));
        vst1q_f32(row + d + 8, vmulq_n_f32(vld1q_f32(row + d + 8), scale));
        vst1q_f32(row + d + 12, vmulq_n_f32(vld1q_f32(row + d + 12), scale));
    }
    for (; d < dim; ++d) row[d] *= scale;
}

#include <atomic>
#include <omp.h>

extern "C" void pool_normalise(const float* x, const float* mask, float* out)
{
    constexpr long batch = BATCH, length = LENGTH, dim = DIM;
    std::atomic<long> taken(0);
    #pragma omp parallel num_threads(THREADS)
    {
        const bool up = omp_get_thread_num() == 0;
        long b = up ? 0 : batch - 1;
        const long way = up ? 1 : -1;
        while (taken.fetch_add(1, std::memory_order_relaxed) < batch) {
            const float* xb = x + b * length * dim;
            const float* mb = mask + b * length;
            float* row = out + b * dim;
            long t = 0;
            if (length >= TOKENS) {
                for (; t + TOKENS <= length; t += TOKENS) {
#if AHEAD
                    for (long n = 0; n < TOKENS * dim; n += 16)
                        __builtin_prefetch(xb + (t + AHEAD) * dim + n, 0, 3);
#endif
                    if (t == 0)
                        add_rows<true>(xb, mb, row, dim);
                    else
                        add_rows<false>(xb + t * dim, mb + t, row, dim);
                }
            } else {
                for (long d = 0; d < dim; ++d) row[d] = 0.0f;
            }
            for (; t < length; ++t)
                for (long d = 0; d < dim; ++d) row[d] += xb[t * dim + d] * mb[t];
            finish(row, sum_of(mb, length), dim);
            b += way;
        }
    }
}
""", flags=[f"-DTOKENS={TOKENS}", f"-DTHREADS={THREADS}", f"-DAHEAD={AHEAD}",
            f"-DBATCH={BATCH}", f"-DLENGTH={LENGTH}", f"-DDIM={DIM}"])


run = lib.pool_normalise


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._out = torch.empty(BATCH, DIM, dtype=torch.float32)

    def forward(self, x, mask):
        out = self._out
        run(x, mask, out)
        return out
