# defect: special_functions | task: soft_signs | language: cuda | static: yes | expect: 3x | summary: a correctly rounded square root and a correctly rounded division a term where rsqrtf would do
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int THREADS = 256, VECTORS = 2, TERMS = 8;

__device__ float soft_sign_sum(float v, const float* weight, const float* centre) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
        const float d = v - centre[i];
        sum += weight[i] * (d / sqrtf(1.0f + d * d));
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS)
soft_signs_kernel(const float4* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ centre,
                  float4* __restrict__ y) {
    const size_t start = size_t(blockIdx.x) * THREADS * VECTORS + threadIdx.x;
    float w[TERMS], c[TERMS];
#pragma unroll
    for (int i = 0; i < TERMS; ++i) w[i] = __ldg(weight + i), c[i] = __ldg(centre + i);
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + start + i * THREADS);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        __stcs(y + start + i * THREADS, make_float4(soft_sign_sum(v[i].x, w, c), soft_sign_sum(v[i].y, w, c),
                                                    soft_sign_sum(v[i].z, w, c), soft_sign_sum(v[i].w, w, c)));
    }
}

extern "C" int soft_signs(const float* x, const float* weight, const float* centre, float* y, int count, int terms,
                          cudaStream_t stream) {
    if (terms != TERMS || count % (4 * THREADS * VECTORS)) return cudaErrorInvalidValue;
    soft_signs_kernel<<<count / (4 * THREADS * VECTORS), THREADS, 0, stream>>>(
        (const float4*)x, weight, centre, (float4*)y);
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
