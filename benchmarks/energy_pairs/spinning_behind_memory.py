# task: task_scale | wastes: 0, 1, 2, 4, 6, 8 | summary: so many warps of each block spin until the others are done
import torch

from kernelpro import runtime

WASTE = 0
lib = runtime.cuda(
    r"""
constexpr int WASTE = @WASTE@, WORKERS = 256, THREADS = WORKERS + 32 * WASTE;

__global__ void __launch_bounds__(THREADS) scale_kernel(const float4* __restrict__ x, float4* __restrict__ y, int vectors) {
    __shared__ int done;
    if (threadIdx.x == 0) done = 0;
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        while (*(volatile int*)&done < WORKERS / 32) {
        }
        return;
    }
    for (int i = blockIdx.x * WORKERS + threadIdx.x; i < vectors; i += gridDim.x * WORKERS) {
        const float4 v = __ldcs(x + i);
        __stcs(y + i, make_float4(fmaf(v.x, 1.5f, 0.25f), fmaf(v.y, 1.5f, 0.25f), fmaf(v.z, 1.5f, 0.25f), fmaf(v.w, 1.5f, 0.25f)));
    }
    __syncwarp();
    if (WASTE && threadIdx.x % 32 == 0) atomicAdd(&done, 1);
}

extern "C" int scale(const float* x, float* y, int n, cudaStream_t stream) {
    scale_kernel<<<132 * 4, THREADS, 0, stream>>>((const float4*)x, (float4*)y, n / 4);
    return cudaGetLastError();
}
""".replace("@WASTE@", str(WASTE))
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scale(x, y, x.numel())
        return y
