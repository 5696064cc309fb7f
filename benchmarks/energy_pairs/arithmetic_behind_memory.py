# task: task_scale | wastes: 0, 8, 16, 24, 32, 40 | summary: multiply-adds for each element whose result is thrown away
import torch

from kernelpro import runtime

WASTE = 0
lib = runtime.cuda(
    r"""
constexpr int WASTE = @WASTE@, THREADS = 256;

__device__ float waste(float v, float other) {
#pragma unroll
    for (int k = 0; k < WASTE; ++k) v = fmaf(v, 0.999f, other);
    return v;
}

__global__ void __launch_bounds__(THREADS) scale_kernel(const float4* __restrict__ x, float4* __restrict__ y, int vectors) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += gridDim.x * THREADS) {
        const float4 v = __ldcs(x + i);
        float4 r = make_float4(fmaf(v.x, 1.5f, 0.25f), fmaf(v.y, 1.5f, 0.25f), fmaf(v.z, 1.5f, 0.25f), fmaf(v.w, 1.5f, 0.25f));
        if (WASTE) {
            const float sum = waste(v.x, v.y) + waste(v.y, v.z) + waste(v.z, v.w) + waste(v.w, v.x);
            if (sum == 3.0e38f) r.x = sum;
        }
        __stcs(y + i, r);
    }
}

extern "C" int scale(const float* x, float* y, int n, cudaStream_t stream) {
    scale_kernel<<<132 * 8, THREADS, 0, stream>>>((const float4*)x, (float4*)y, n / 4);
    return cudaGetLastError();
}
""".replace("@WASTE@", str(WASTE))
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, y, x.numel())
        return y
