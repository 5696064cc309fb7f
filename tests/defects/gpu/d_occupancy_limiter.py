# defect: occupancy_limiter | task: rmsnorm | language: cuda | static: no | expect: 2.5x | summary: shared memory for the longest row there might be (200 KB), so that one block of four warps has a multiprocessor to itself
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int DIM = 4096, THREADS = 128, WARPS = THREADS / 32, LONGEST = 51200;

__device__ float warp_sum(float v, int width) {
    for (int offset = width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

__global__ void __launch_bounds__(THREADS)
rmsnorm_kernel(const float4* __restrict__ x, const float4* __restrict__ weight, float4* __restrict__ y, float eps) {
    extern __shared__ float4 row[];
    __shared__ float sums[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t start = size_t(blockIdx.x) * (DIM / 4);
    float sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < DIM / 4; i += THREADS) {
        const float4 v = row[i] = __ldcs(x + start + i);
        sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    sum = warp_sum(sum, 32);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    const float scale = rsqrtf(warp_sum(sums[lane % WARPS], WARPS) / DIM + eps);
#pragma unroll 4
    for (int i = threadIdx.x; i < DIM / 4; i += THREADS) {
        const float4 v = row[i], w = __ldg(weight + i);
        __stcs(y + start + i, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
    }
}

extern "C" int rmsnorm(const float* x, const float* weight, float* y, int rows, int dim, float eps,
                       cudaStream_t stream) {
    if (dim != DIM) return cudaErrorInvalidValue;
    const int bytes = LONGEST * sizeof(float);
    if (auto error = cudaFuncSetAttribute(rmsnorm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return error;
    rmsnorm_kernel<<<rows, THREADS, bytes, stream>>>((const float4*)x, (const float4*)weight, (float4*)y, eps);
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
