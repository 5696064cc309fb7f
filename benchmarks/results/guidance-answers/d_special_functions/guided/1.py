import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, VECTORS = 2, STEPS = 4, TERMS = 8;
constexpr int SOFT = 1;  // terms whose reciprocal root goes to the FMA pipe, to relieve the special function unit

__device__ __forceinline__ float fast_rsqrt(float v) {  // one instruction; the argument is at least 1
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// The same without the special function unit: a first guess from the exponent's bits (within 3.5%),
// then a minimax cubic in e = 1 - v * guess^2, |e| < 0.07; relative error below 1e-6.
__device__ __forceinline__ float soft_rsqrt(float v) {
    const float guess = __uint_as_float(0x5f37642fu - (__float_as_uint(v) >> 1));
    const float e = fmaf(v * guess, -guess, 1.0f);
    float p = fmaf(0.3140073f, e, 0.37633984f);
    p = fmaf(p, e, 0.49999815f);
    p = fmaf(p, e, 0.99999918f);
    return guess * p;
}

__device__ __forceinline__ float soft_sign_sum(float v, const float (&weight)[TERMS], const float (&centre)[TERMS]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
        const float d = v - centre[i];
        const float square = fmaf(d, d, 1.0f);
        const float root = i < SOFT ? soft_rsqrt(square) : fast_rsqrt(square);
        sum = fmaf(weight[i] * d, root, sum);
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS)
soft_signs_kernel(const float4* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ centre,
                  float4* __restrict__ y) {
    const size_t start = size_t(blockIdx.x) * (THREADS * VECTORS * STEPS) + threadIdx.x;
    const float4* in = x + start;
    float4* out = y + start;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(in + i * THREADS);
    float w[TERMS], c[TERMS];
#pragma unroll
    for (int i = 0; i < TERMS; ++i) w[i] = __ldg(weight + i), c[i] = __ldg(centre + i);
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        float4 next[VECTORS];
        in += THREADS * VECTORS;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            next[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (step + 1 < STEPS) next[i] = __ldcs(in + i * THREADS);
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            __stcs(out + i * THREADS, make_float4(soft_sign_sum(v[i].x, w, c), soft_sign_sum(v[i].y, w, c),
                                                  soft_sign_sum(v[i].z, w, c), soft_sign_sum(v[i].w, w, c)));
        }
        out += THREADS * VECTORS;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) v[i] = next[i];
    }
}

extern "C" int soft_signs(const float* x, const float* weight, const float* centre, float* y, int count, int terms,
                          cudaStream_t stream) {
    constexpr int CHUNK = 4 * THREADS * VECTORS * STEPS;
    if (terms != TERMS || count % CHUNK) return cudaErrorInvalidValue;
    soft_signs_kernel<<<count / CHUNK, THREADS, 0, stream>>>((const float4*)x, weight, centre, (float4*)y);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, terms):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(terms))
        self.centre = nn.Parameter(torch.randn(terms))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.soft_signs(x, self.weight, self.centre, y, x.numel(), self.weight.numel())
        return y
