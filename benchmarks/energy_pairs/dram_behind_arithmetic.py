# task: task_chain | wastes: 0, 4, 8, 16, 32 | summary: so many sixteenths of the input's bytes are read from DRAM for nothing
import torch

from kernelpro import runtime

WASTE = 0
lib = runtime.cuda(
    r"""
constexpr int WASTE = @WASTE@, THREADS = 256, READS = (WASTE + 15) / 16;

__device__ float chain(float v) {
#pragma unroll
    for (int k = 0; k < 128; ++k) {
        v = fmaf(v, 1.01f, 0.01f);
        v = fmaf(v, 0.99f, -0.01f);
    }
    return v;
}

__global__ void __launch_bounds__(THREADS)
chain_kernel(const float4* __restrict__ x, const float4* __restrict__ other, float4* __restrict__ y, int vectors) {
    const int warp = (blockIdx.x * THREADS + threadIdx.x) / 32 % 16;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += gridDim.x * THREADS) {
        float4 more[READS + 1];
#pragma unroll
        for (int k = 0; k < READS; ++k)
            if (warp < WASTE - 16 * k) more[k] = __ldcs(other + size_t(k) * vectors + i);
        const float4 v = __ldcs(x + i);
        float4 r = make_float4(chain(v.x), chain(v.y), chain(v.z), chain(v.w));
#pragma unroll
        for (int k = 0; k < READS; ++k)
            if (warp < WASTE - 16 * k && more[k].x == 3.0e38f) r.x = more[k].y + more[k].z + more[k].w;
        __stcs(y + i, r);
    }
}

extern "C" int chain_all(const float* x, const float* other, float* y, int n, cudaStream_t stream) {
    chain_kernel<<<132 * 8, THREADS, 0, stream>>>((const float4*)x, (const float4*)other, (float4*)y, n / 4);
    return cudaGetLastError();
}
""".replace("@WASTE@", str(WASTE))
)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.other = None

    def forward(self, x):
        if self.other is None:
            self.other = torch.randn(max(1, (WASTE + 15) // 16) * x.numel(), device=x.device)
        y = torch.empty_like(x)
        lib.chain_all(x, self.other, y, x.numel())
        return y
