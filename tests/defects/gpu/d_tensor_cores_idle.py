# defect: tensor_cores_idle | task: linear_gelu | language: cuda | static: yes | expect: 7x | summary: a well tiled product in float32 multiply-adds, although TF32 tensor cores are allowed
import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cuda(r"""
constexpr int BM = 128, BN = 128, BK = 16, THREADS = 256, GROUP = 16, QUADS = BM * BK / 4 / THREADS;
constexpr int LD = BM + 4;  // padded, so that the turned stores spread over the banks

struct Stage {
    float x[BK][LD];
    float w[BK][LD];
};

__device__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }

// BM x BK of a row-major matrix into registers, four values of a row each.
__device__ void load(float4 (&to)[QUADS], const float* from, int k) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int place = threadIdx.x + i * THREADS;
        to[i] = __ldg((const float4*)(from + size_t(place / (BK / 4)) * k + place % (BK / 4) * 4));
    }
}

__device__ void store(float (&to)[BK][LD], const float4 (&from)[QUADS]) {
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int place = threadIdx.x + i * THREADS, row = place / (BK / 4), col = place % (BK / 4) * 4;
        to[col][row] = from[i].x, to[col + 1][row] = from[i].y, to[col + 2][row] = from[i].z, to[col + 3][row] = from[i].w;
    }
}

__global__ void __launch_bounds__(THREADS, 2)
linear_gelu_kernel(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                   float* __restrict__ y, int m, int n, int k) {
    __shared__ Stage stages[2];
    // Blocks that run together form a square of tiles, so that L2 serves most loads.
    const int tiles_m = m / BM, tiles_n = n / BN, first = blockIdx.x / (GROUP * tiles_n) * GROUP;
    const int group = min(GROUP, tiles_m - first), within = blockIdx.x % (GROUP * tiles_n);
    const int row = (first + within % group) * BM, col = within / group * BN, tiles = k / BK;
    x += size_t(row) * k;
    w += size_t(col) * k;

    // 16 x 16 threads; each has 2 x 2 squares of 4 x 4, half a tile apart.
    const int i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 4;
    float4 next_x[QUADS], next_w[QUADS];
    float acc[8][8] = {};
    load(next_x, x, k);
    load(next_w, w, k);
    store(stages[0].x, next_x);
    store(stages[0].w, next_w);
    __syncthreads();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            load(next_x, x + (tile + 1) * BK, k);
            load(next_w, w + (tile + 1) * BK, k);
        }
        const Stage& stage = stages[tile % 2];
#pragma unroll
        for (int kk = 0; kk < BK; ++kk) {
            const float4 x0 = *(const float4*)&stage.x[kk][i], x1 = *(const float4*)&stage.x[kk][i + BM / 2];
            const float4 w0 = *(const float4*)&stage.w[kk][j], w1 = *(const float4*)&stage.w[kk][j + BN / 2];
            const float a[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            const float b[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
            for (int p = 0; p < 8; ++p) {
#pragma unroll
                for (int q = 0; q < 8; ++q) acc[p][q] = fmaf(a[p], b[q], acc[p][q]);
            }
        }
        if (tile + 1 < tiles) {
            store(stages[(tile + 1) % 2].x, next_x);
            store(stages[(tile + 1) % 2].w, next_w);
        }
        __syncthreads();
    }

#pragma unroll
    for (int p = 0; p < 8; ++p) {
        float* out = y + size_t(row + i + p / 4 * (BM / 2) + p % 4) * n + col + j;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float4 b = __ldg((const float4*)(bias + col + j + half * (BN / 2)));
            const float* v = &acc[p][half * 4];
            *(float4*)(out + half * (BN / 2)) =
                make_float4(gelu(v[0] + b.x), gelu(v[1] + b.y), gelu(v[2] + b.z), gelu(v[3] + b.w));
        }
    }
}

extern "C" int linear_gelu(const float* x, const float* w, const float* bias, float* y, int m, int n, int k,
                           cudaStream_t stream) {
    if (m % BM || n % BN || k % BK) return cudaErrorInvalidValue;
    linear_gelu_kernel<<<m / BM * (n / BN), THREADS, 0, stream>>>(x, w, bias, y, m, n, k);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def __init__(self, features_in, features_out):
        super().__init__()
        self.linear = nn.Linear(features_in, features_out)

    def forward(self, x):
        x, weight = x.contiguous(), self.linear.weight
        y = torch.empty(x.shape[0], weight.shape[0], device=x.device)
        lib.linear_gelu(x, weight, self.linear.bias, y, x.shape[0], weight.shape[0], weight.shape[1])
        return y
