# task: task_ratio | wastes: 0, 1, 4, 8, 12, 16, 24 | summary: an IEEE division and doubles where a fast division would do
import torch

from kernelpro import runtime

WASTE = 0
lib = runtime.cuda(
    r"""
constexpr int WASTE = @WASTE@, THREADS = 256;

__device__ float ratio(float v) {
    const float below = fmaf(v, v, 1.0f);
    if (!WASTE) return __fdividef(v, below);
    double wide = below;
#pragma unroll
    for (int k = 1; k < WASTE; ++k) wide = fma(wide, 1.0000001, 1e-9 * k);
    const float r = __fdiv_rn(v, below);
    return wide == 3.0e300 ? 0.0f : r;
}

__global__ void __launch_bounds__(THREADS) ratio_kernel(const float4* __restrict__ x, float4* __restrict__ y, int vectors) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += gridDim.x * THREADS) {
        const float4 v = __ldcs(x + i);
        __stcs(y + i, make_float4(ratio(v.x), ratio(v.y), ratio(v.z), ratio(v.w)));
    }
}

extern "C" int ratio_all(const float* x, float* y, int n, cudaStream_t stream) {
    ratio_kernel<<<132 * 8, THREADS, 0, stream>>>((const float4*)x, (float4*)y, n / 4);
    return cudaGetLastError();
}
""".replace("@WASTE@", str(WASTE))
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.ratio_all(x, y, x.numel())
        return y
