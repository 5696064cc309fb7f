import torch
import torch.nn as nn
from kernelpro import runtime

DIM = 192
GRAIN = 1  # tune: 1, 2

lib = runtime.cpp(r"""
#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))
#define PIECE 64

// e^x = s * (1 + p); |x| must be at most about 87
INLINE float32x4_t exp_parts(float32x4_t x, float32x4_t& s)
{
    const float32x4_t magic = vdupq_n_f32(12583039.0f);          // 1.5 * 2^23 + 127
    const float32x4_t t = vfmaq_f32(magic, x, vdupq_n_f32(1.44269504f));
    const float32x4_t n = vsubq_f32(t, magic);
    s = vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23));
    const float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693147181f));
    float32x4_t q = vdupq_n_f32(1.9875691500e-4f);
    q = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), q, r);
    q = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), q, r);
    q = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), q, r);
    q = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), q, r);
    q = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), q, r);
    return vfmaq_f32(r, vmulq_f32(r, r), q);
}

// 1 + e^-x, the denominator of sigmoid(x)
INLINE float32x4_t sigmoid_below(float32x4_t x)
{
    x = vnegq_f32(x);
    x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-60.0f)), vdupq_n_f32(60.0f));
    float32x4_t s;
    const float32x4_t p = exp_parts(x, s);
    return vaddq_f32(vdupq_n_f32(1.0f), vfmaq_f32(s, s, p));
}

// e^2x - 1 =: m; tanh(x) = m / (m + 2)
INLINE float32x4_t tanh_above(float32x4_t x)
{
    x = vaddq_f32(x, x);
    x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-20.0f)), vdupq_n_f32(20.0f));
    float32x4_t s;
    const float32x4_t p = exp_parts(x, s);
    return vfmaq_f32(vsubq_f32(s, vdupq_n_f32(1.0f)), s, p);
}

INLINE void finish(float32x4_t i, float32x4_t f, float32x4_t g, float32x4_t o,
                   const float* c, float* hn, float* cn)
{
    const float32x4_t two = vdupq_n_f32(2.0f);
    const float32x4_t m = tanh_above(g);
    const float32x4_t fresh = vdivq_f32(m, vmulq_f32(sigmoid_below(i), vaddq_f32(m, two)));
    const float32x4_t kept = vdivq_f32(vld1q_f32(c), sigmoid_below(f));
    const float32x4_t cell = vaddq_f32(kept, fresh);
    const float32x4_t u = tanh_above(cell);
    vst1q_f32(cn, cell);
    vst1q_f32(hn, vdivq_f32(u, vmulq_f32(sigmoid_below(o), vaddq_f32(u, two))));
}

static __attribute__((noinline)) void gates(const float* pre, const float* c, float* hn, float* cn, long rows)
{
    for (long r = 0; r < rows; ++r)
        finish(vld1q_f32(pre + r * 16), vld1q_f32(pre + r * 16 + 4),
               vld1q_f32(pre + r * 16 + 8), vld1q_f32(pre + r * 16 + 12),
               c + r * DIM, hn + r * DIM, cn + r * DIM);
}

// sum of row r and gate g: v(16 + 4 r + g); activations: v0-v3; weights: v4-v7, v8-v11
#define FM(acc, b, a, L) "fmla v" #acc ".4s, v" #b ".4s, v" #a ".s[" #L "]\n\t"
#define LANE(L, b0, b1, b2, b3) \
    FM(16, b0, 0, L) FM(20, b0, 1, L) FM(24, b0, 2, L) FM(28, b0, 3, L) \
    FM(17, b1, 0, L) FM(21, b1, 1, L) FM(25, b1, 2, L) FM(29, b1, 3, L) \
    FM(18, b2, 0, L) FM(22, b2, 1, L) FM(26, b2, 2, L) FM(30, b2, 3, L) \
    FM(19, b3, 0, L) FM(23, b3, 1, L) FM(27, b3, 2, L) FM(31, b3, 3, L)

// pre[row][gate][4] += 4 rows of activations times the panel's weights, 4 k in each turn
static __attribute__((noinline)) void sweep(const float* w, const float* p0, const float* p1,
                                            const float* p2, const float* p3, float* pre,
                                            long quads, const float* ahead)
{
    asm volatile(
        "ldp q16, q17, [%[pre]]\n\t"
        "ldp q18, q19, [%[pre], #32]\n\t"
        "ldp q20, q21, [%[pre], #64]\n\t"
        "ldp q22, q23, [%[pre], #96]\n\t"
        "ldp q24, q25, [%[pre], #128]\n\t"
        "ldp q26, q27, [%[pre], #160]\n\t"
        "ldp q28, q29, [%[pre], #192]\n\t"
        "ldp q30, q31, [%[pre], #224]\n\t"
        "1:\n\t"
        "ldr q0, [%[p0]], #16\n\t"
        "ldr q1, [%[p1]], #16\n\t"
        "ldp q4, q5, [%[w]]\n\t"
        "ldr q2, [%[p2]], #16\n\t"
        "ldr q3, [%[p3]], #16\n\t"
        "ldp q6, q7, [%[w], #32]\n\t"
        "ldp q8, q9, [%[w], #64]\n\t"
        "ldp q10, q11, [%[w], #96]\n\t"
        LANE(0, 4, 5, 6, 7)
        "ldp q4, q5, [%[w], #128]\n\t"
        "ldp q6, q7, [%[w], #160]\n\t"
        LANE(1, 8, 9, 10, 11)
        "ldp q8, q9, [%[w], #192]\n\t"
        "ldp q10, q11, [%[w], #224]\n\t"
        LANE(2, 4, 5, 6, 7)
        "prfm pldl2keep, [%[ahead]]\n\t"
        "add %[ahead], %[ahead], #16\n\t"
        "add %[w], %[w], #256\n\t"
        LANE(3, 8, 9, 10, 11)
        "subs %[n], %[n], #1\n\t"
        "b.ne 1b\n\t"
        "stp q16, q17, [%[pre]]\n\t"
        "stp q18, q19, [%[pre], #32]\n\t"
        "stp q20, q21, [%[pre], #64]\n\t"
        "stp q22, q23, [%[pre], #96]\n\t"
        "stp q24, q25, [%[pre], #128]\n\t"
        "stp q26, q27, [%[pre], #160]\n\t"
        "stp q28, q29, [%[pre], #192]\n\t"
        "stp q30, q31, [%[pre], #224]\n\t"
        : [w] "+r"(w), [p0] "+r"(p0), [p1] "+r"(p1), [p2] "+r"(p2), [p3] "+r"(p3),
          [n] "+r"(quads), [ahead] "+r"(ahead)
        : [pre] "r"(pre)
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",
          "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}

// x, h, c, hn, cn: [batch][DIM]; w: [DIM / 4][2 * DIM][4 gates][4]; b: [DIM / 4][4 gates][4]
extern "C" void lstm_step(const float* x, const float* h, const float* c, const float* w,
                          const float* b, float* hn, float* cn, long batch)
{
    constexpr long panels = DIM / 4;
    constexpr long size = 2 * DIM * 16;
    #pragma omp parallel for schedule(dynamic, GRAIN)
    for (long panel = 0; panel < panels; ++panel) {
        alignas(64) float pre[PIECE * 16];
        const float* wp = w + panel * size;
        const float* next = panel + 1 < panels ? wp + size : wp;
        const float32x4_t bi = vld1q_f32(b + panel * 16), bf = vld1q_f32(b + panel * 16 + 4);
        const float32x4_t bg = vld1q_f32(b + panel * 16 + 8), bo = vld1q_f32(b + panel * 16 + 12);
        const long u = panel * 4;
        for (long base = 0; base < batch; base += PIECE) {
            const long rows = batch - base < PIECE ? batch - base : PIECE;
            for (long r = 0; r < rows; r += 4) {
                // rows beyond the end repeat the last one; their sums are not used
                const long left = rows - 1 - r;
                const long s1 = (left < 1 ? left : 1) * DIM;
                const long s2 = (left < 2 ? left : 2) * DIM;
                const long s3 = (left < 3 ? left : 3) * DIM;
                float* out = pre + r * 16;
                for (int n = 0; n < 4; ++n) {
                    vst1q_f32(out + n * 16, bi);
                    vst1q_f32(out + n * 16 + 4, bf);
                    vst1q_f32(out + n * 16 + 8, bg);
                    vst1q_f32(out + n * 16 + 12, bo);
                }
                const float* p = x + (base + r) * DIM;
                const float* q = h + (base + r) * DIM;
                const float* ahead = next + r / 4 * (DIM * 2);
                sweep(wp, p, p + s1, p + s2, p + s3, out, DIM / 4, ahead);
                sweep(wp + DIM * 16, q, q + s1, q + s2, q + s3, out, DIM / 4, ahead + DIM);
            }
            gates(pre, c + base * DIM + u, hn + base * DIM + u, cn + base * DIM + u, rows);
        }
    }
}
""", flags=[f"-DDIM={DIM}", f"-DGRAIN={GRAIN}"])

step = lib.lstm_step


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == DIM and dim % 4 == 0
        self.input, self.hidden = nn.Linear(dim, 4 * dim), nn.Linear(dim, 4 * dim, bias=False)
        self._packed = None
        self._out = None

    def _prepare(self, x):
        dim = DIM
        with torch.no_grad():
            both = torch.cat([self.input.weight.detach(), self.hidden.weight.detach()], dim=1)
            both = both.view(4, dim // 4, 4, 2 * dim)                        # gate, panel, unit, k
            w = both.permute(1, 3, 0, 2).contiguous()                        # panel, k, gate, unit
            b = self.input.bias.detach().view(4, dim // 4, 4).permute(1, 0, 2).contiguous()
        self._out = (torch.empty(x.shape, dtype=torch.float32), torch.empty(x.shape, dtype=torch.float32))
        self._packed = (w, b)

    def forward(self, x, h, c):
        if self._packed is None or self._out[0].shape != x.shape:
            self._prepare(x)
        w, b = self._packed
        out = self._out
        step(x, h, c, w, b, out[0], out[1], x.shape[0])
        return out
