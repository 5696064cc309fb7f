# task: task_scale | wastes: 0, 2, 4, 6, 8, 12, 16 | summary: products on tensor cores whose result is thrown away
import torch

from kernelpro import runtime

WASTE = 0
lib = runtime.cuda(
    r"""
constexpr int WASTE = @WASTE@, THREADS = 256;

__device__ unsigned twice(float v) {  // the value as bfloat16, two times
    const unsigned bits = __float_as_uint(v) & 0xffff0000u;
    return bits | (bits >> 16);
}

__global__ void __launch_bounds__(THREADS) scale_kernel(const float4* __restrict__ x, float4* __restrict__ y, int vectors) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += gridDim.x * THREADS) {
        const float4 v = __ldcs(x + i);
        float4 r = make_float4(fmaf(v.x, 1.5f, 0.25f), fmaf(v.y, 1.5f, 0.25f), fmaf(v.z, 1.5f, 0.25f), fmaf(v.w, 1.5f, 0.25f));
        if (WASTE) {
            const unsigned a = twice(v.x), b = twice(v.y), c = twice(v.z), d = twice(v.w);
            float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma unroll
            for (int k = 0; k < WASTE; ++k)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
                             : "r"(a), "r"(b), "r"(c), "r"(d), "r"(b), "r"(c));
            const float sum = s0 + s1 + s2 + s3;
            if (sum == 3.0e38f) r.x = sum;
        }
        __stcs(y + i, r);
    }
}

extern "C" int scale(const float* x, float* y, int n, cudaStream_t stream) {
    if (n % 128) return cudaErrorInvalidValue;  // whole warps only
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
