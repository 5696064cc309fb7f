import torch
import torch.nn as nn
from kernelpro import runtime

GROUP = 8  # tune: 4, 8, 16
SKEW = 1200  # tune: 0, 1200, 2400
STREAMK = 1  # tune: 0, 1

_SRC = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <cute/tensor.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

using namespace cute;
using bf16 = cutlass::bfloat16_t;

// problem: out[M,N] = gelu(x[M,K] * w[N,K]^T + bias[N])
static constexpr int GM = 8192, GN = 8192, GK = 4096;
static constexpr int BM = 128, BN = 256, BK = 64;      // per CTA
static constexpr int STAGES = 4;
static constexpr int KT = GK / BK;                     // 64
static constexpr int MT = GM / (2 * BM);               // cluster tiles: 32 x 32 of 256x256
static constexpr int NT = GN / BN;
static constexpr int TILES = MT * NT;                  // 1024
static constexpr int NC = 66;                          // clusters of two CTAs, all resident
static constexpr int FULL = TILES / NC;                // 15 whole waves
static constexpr int TAIL = TILES - FULL * NC;         // 34 tiles left, cut along K
static constexpr int PER = (TAIL * KT + NC - 1) / NC;  // 33 k-steps for each cluster
static_assert(PER <= KT, "at most two segments per cluster");
static_assert(MT % GROUP_M == 0, "");

static constexpr int A_STAGE = BM * BK;                // elements
static constexpr int B_STAGE = BN * BK;
static constexpr uint32_t TX_BYTES = (A_STAGE + B_STAGE) * 2;
static constexpr int C_BUF = 64 * 64;                  // one 64x64 bf16 box, 128 B rows
static constexpr int OFF_B = STAGES * A_STAGE * 2;
static constexpr int OFF_C = OFF_B + STAGES * B_STAGE * 2;
static constexpr int OFF_BAR = OFF_C + 4 * C_BUF * 2;
static constexpr int OFF_BIAS = OFF_BAR + 128;         // 256 bf16 for each warpgroup
static constexpr int SMEM = OFF_BIAS + 2 * BN * 2 + 1024;
static_assert(SMEM <= 232448, "");

using LayoutA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<bf16>{},
                                       Shape<Int<BM>, Int<BK>, Int<STAGES>>{}));
using LayoutB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<bf16>{},
                                       Shape<Int<BN>, Int<BK>, Int<STAGES>>{}));

struct Work { int m, n, k0, k1, tail_tile; };

__device__ __forceinline__ void tile_coord(int t, Work& w) {
  int g = t / (GROUP_M * NT), r = t % (GROUP_M * NT);
  w.m = g * GROUP_M + r % GROUP_M;
  w.n = r / GROUP_M;
}

__device__ __forceinline__ bool get_work(int cl, int i, Work& w) {
  w.k0 = 0; w.k1 = KT; w.tail_tile = -1;
#if STREAMK
  int t;
  if (i < FULL) {
    t = cl + i * NC;
  } else {
    int beg = cl * PER;
    int end = min(beg + PER, TAIL * KT);
    if (beg >= end || i > FULL + 1) return false;
    int t0 = beg / KT;
    if (i == FULL) {
      w.k0 = beg - t0 * KT;
      w.k1 = min(KT, end - t0 * KT);
    } else {
      ++t0;
      if (end <= t0 * KT) return false;
      w.k1 = end - t0 * KT;
    }
    w.tail_tile = t0;
    t = FULL * NC + t0;
  }
#else
  int t = cl + i * NC;
  if (t >= TILES) return false;
#endif
  tile_coord(t, w);
  return true;
}

__device__ __forceinline__ void wg_sync(int wg) {
  asm volatile("bar.sync %0, 128;" :: "r"(wg + 1) : "memory");
}

__device__ __forceinline__ float gelu(float y) {
  float u = y * fmaf(0.03567740814f, y * y, 0.7978845608f);
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
  float h = 0.5f * y;
  return fmaf(h, t, h);
}

__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

__global__ void __launch_bounds__(384, 1)
gemm_gelu_kernel(const __grid_constant__ CUtensorMap mapA,
                 const __grid_constant__ CUtensorMap mapB,
                 const __grid_constant__ CUtensorMap mapC,
                 const uint32_t* __restrict__ bias2,
                 float4* scratch, int* flags) {
  extern __shared__ __align__(1024) unsigned char smem_raw[];
  unsigned char* smem = smem_raw + ((1024u - (cast_smem_ptr_to_uint(smem_raw) & 1023u)) & 1023u);
  bf16* sAp = reinterpret_cast<bf16*>(smem);
  bf16* sBp = reinterpret_cast<bf16*>(smem + OFF_B);
  bf16* sCp = reinterpret_cast<bf16*>(smem + OFF_C);
  uint64_t* full = reinterpret_cast<uint64_t*>(smem + OFF_BAR);
  uint64_t* empty = full + STAGES;
  using TxBar = cutlass::arch::ClusterTransactionBarrier;
  using Bar = cutlass::arch::ClusterBarrier;

  const int tid = threadIdx.x;
  const int wgidx = __shfl_sync(0xffffffffu, tid / 128, 0);
  const int rank = int(cute::block_rank_in_cluster());
  const int cl = blockIdx.x >> 1;

  if (tid == 0) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&mapA));
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&mapB));
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&mapC));
    for (int s = 0; s < STAGES; ++s) {
      Bar::init(full + s, 1);
      Bar::init(empty + s, 4);          // two CTAs x two consumer warpgroups
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  cute::cluster_arrive();
  cute::cluster_wait();

  if (wgidx == 0) {
    // ------------------------------------------------------------ producer
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (tid == 0) {
      int slot = 0;
      uint32_t phase = 0;
      const uint64_t hint = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);
      Work w;
      for (int i = 0; get_work(cl, i, w); ++i) {
        const int row_a = w.m * 2 * BM + rank * BM;
        const int row_b = w.n * BN + rank * (BN / 2);
        for (int k = w.k0; k < w.k1; ++k) {
          Bar::wait(empty + slot, phase ^ 1);
          TxBar::arrive_and_expect_tx(full + slot, TX_BYTES);
          SM90_TMA_LOAD_2D::copy(&mapA, full + slot, hint, sAp + slot * A_STAGE, k * BK, row_a);
          SM90_TMA_LOAD_MULTICAST_2D::copy(&mapB, full + slot, uint16_t(3), hint,
                                           sBp + slot * B_STAGE + rank * (B_STAGE / 2),
                                           k * BK, row_b);
          if (++slot == STAGES) { slot = 0; phase ^= 1; }
        }
      }
    }
    __syncwarp();
  } else {
    // ------------------------------------------------------------ consumers
    cutlass::arch::warpgroup_reg_alloc<232>();
    const int wg = wgidx - 1;
    const int t = tid & 127;
    const int warp = t >> 5, lane = t & 31;

    auto tiled_mma = make_tiled_mma(
        SM90_64x256x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::K>{}, Layout<Shape<_2, _1, _1>>{});
    Tensor sA = make_tensor(make_smem_ptr(sAp), LayoutA{});
    Tensor sB = make_tensor(make_smem_ptr(sBp), LayoutB{});
    auto thr = tiled_mma.get_slice(wg * 128);      // warpgroup-uniform
    Tensor rA = thr.make_fragment_A(thr.partition_A(sA));
    Tensor rB = thr.make_fragment_B(thr.partition_B(sB));
    Tensor acc = partition_fragment_C(tiled_mma, Shape<Int<BM>, Int<BN>>{});
    static_assert(decltype(size(acc))::value == 128, "");

    // this lane's row for stmatrix: matrices (rows 0-7, j) (rows 8-15, j) (0-7, j+1) (8-15, j+1)
    const int st_row = warp * 16 + ((lane >> 3) & 1) * 8 + (lane & 7);
    const uint32_t st_base = cast_smem_ptr_to_uint(sCp + wg * 2 * C_BUF) + st_row * 128;
    const int st_blk = lane >> 4;
    const int st_x = lane & 7;

    volatile uint32_t* sBias = reinterpret_cast<volatile uint32_t*>(smem + OFF_BIAS) + wg * (BN / 2);

    int slot = 0;
    uint32_t phase = 0;

#if SKEW > 0
    // Run the second warpgroup a little behind the first, so that one computes while the
    // other is in its epilogue; nothing later brings them into step again.
    if (wg == 1) {
      Bar::wait(full, 0);
      long long c0 = clock64();
      while (clock64() - c0 < SKEW) { }
    }
#endif

    auto release = [&](int s) { Bar::arrive(empty + s, uint32_t(t & 1), uint32_t(t < 2)); };

    Work w;
    for (int i = 0; get_work(cl, i, w); ++i) {
      const int steps = w.k1 - w.k0;
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      Bar::wait(full + slot, phase);
      warpgroup_fence_operand(acc);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int kk = 0; kk < BK / 16; ++kk) {
        cute::gemm(tiled_mma, rA(_, _, kk, slot), rB(_, _, kk, slot), acc);
        tiled_mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      int prev = slot;
      if (++slot == STAGES) { slot = 0; phase ^= 1; }

      CUTE_NO_UNROLL
      for (int it = 1; it < steps; ++it) {
        Bar::wait(full + slot, phase);
        warpgroup_fence_operand(acc);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int kk = 0; kk < BK / 16; ++kk) {
          cute::gemm(tiled_mma, rA(_, _, kk, slot), rB(_, _, kk, slot), acc);
        }
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        warpgroup_fence_operand(acc);
        release(prev);
        prev = slot;
        if (++slot == STAGES) { slot = 0; phase ^= 1; }
      }

      // bias for this tile's columns, on its way while the last products finish
      uint32_t bias_reg;
      asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(bias_reg) : "l"(bias2 + w.n * (BN / 2) + t));
      warpgroup_wait<0>();
      warpgroup_fence_operand(acc);
      release(prev);

#if STREAMK
      if (w.tail_tile >= 0) {
        if (w.k0 > 0) {
          // a part of a tile that begins elsewhere: hand the partial sums over
          const int sl = (cl * 2 + rank) * 2 + wg;
          float4* p = scratch + size_t(sl) * (32 * 128) + t;
          CUTE_UNROLL
          for (int j = 0; j < 32; ++j)
            __stcg(p + j * 128, make_float4(acc(4 * j), acc(4 * j + 1), acc(4 * j + 2), acc(4 * j + 3)));
          __threadfence();
          wg_sync(wg);
          if (t == 0)
            asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(flags + sl), "r"(1) : "memory");
          continue;
        }
        // the owner: clusters cl+1.. hold the rest of this tile
        const int tile_end = min((w.tail_tile + 1) * KT, TAIL * KT);
        for (int c = cl + 1; c * PER < tile_end; ++c) {
          const int sl = (c * 2 + rank) * 2 + wg;
          if (t == 0) {
            int v;
            do {
              asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(flags + sl) : "memory");
            } while (v == 0);
            flags[sl] = 0;               // for the next call
            __threadfence();
          }
          wg_sync(wg);
          const float4* p = scratch + size_t(sl) * (32 * 128) + t;
          CUTE_UNROLL
          for (int j = 0; j < 32; ++j) {
            float4 v = __ldcg(p + j * 128);
            acc(4 * j) += v.x; acc(4 * j + 1) += v.y; acc(4 * j + 2) += v.z; acc(4 * j + 3) += v.w;
          }
        }
      }
#endif

      const int row = w.m * 2 * BM + rank * BM + wg * 64;
      const int col = w.n * BN;
      sBias[t] = bias_reg;
      wg_sync(wg);
      CUTE_UNROLL
      for (int c = 0; c < 4; ++c) {
        uint32_t o[16], bb[8];
        CUTE_UNROLL
        for (int q = 0; q < 8; ++q) bb[q] = sBias[(c * 8 + q) * 4 + (lane & 3)];
        CUTE_UNROLL
        for (int q = 0; q < 8; ++q) {
          const int j = c * 8 + q;
          const float b0 = __uint_as_float(bb[q] << 16);
          const float b1 = __uint_as_float(bb[q] & 0xffff0000u);
          o[2 * q]     = pack(gelu(acc(4 * j) + b0),     gelu(acc(4 * j + 1) + b1));
          o[2 * q + 1] = pack(gelu(acc(4 * j + 2) + b0), gelu(acc(4 * j + 3) + b1));
        }
        if (t == 0) tma_store_wait<1>();   // the box written two chunks ago has been read
        wg_sync(wg);
        const uint32_t base = st_base + (c & 1) * (C_BUF * 2);
        CUTE_UNROLL
        for (int q = 0; q < 8; q += 2) {
          const uint32_t a = base + (uint32_t((q + st_blk) ^ st_x) << 4);
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                       :: "r"(a), "r"(o[2 * q]), "r"(o[2 * q + 1]), "r"(o[2 * q + 2]), "r"(o[2 * q + 3])
                       : "memory");
        }
        tma_store_fence();
        wg_sync(wg);
        if (t == 0) {
          // never read again here: leave the L2 to x and w
          asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint"
                       " [%0, {%2, %3}], [%1], %4;"
                       :: "l"(reinterpret_cast<uint64_t>(&mapC)),
                          "r"(cast_smem_ptr_to_uint(sCp + (wg * 2 + (c & 1)) * C_BUF)),
                          "r"(col + c * 64), "r"(row),
                          "l"(uint64_t(TMA::CacheHintSm90::EVICT_FIRST)) : "memory");
          tma_store_arrive();
        }
      }
    }
    if (t == 0) tma_store_wait<0>();
    __syncwarp();
  }
  // neither CTA leaves while the other may still signal its barriers or write its memory
  cute::cluster_arrive();
  cute::cluster_wait();
}

typedef CUresult (*EncodeFn)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                             const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                             CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                             CUtensorMapFloatOOBfill);

static int encode(EncodeFn fn, CUtensorMap* m, const void* p, int rows, int cols, int box_rows) {
  cuuint64_t dims[2] = {cuuint64_t(cols), cuuint64_t(rows)};
  cuuint64_t strides[1] = {cuuint64_t(cols) * 2};
  cuuint32_t box[2] = {64, cuuint32_t(box_rows)};
  cuuint32_t es[2] = {1, 1};
  return int(fn(m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(p), dims, strides, box, es,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

extern "C" int gemm_gelu(const void* x, const void* w, const void* bias, void* out,
                         void* scratch, void* flags, cudaStream_t stream) {
  static EncodeFn fn = nullptr;
  static const void *px = nullptr, *pw = nullptr, *po = nullptr;
  alignas(64) static CUtensorMap mA, mB, mC;
  if (!fn) {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult q;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                     cudaEnableDefault, &q);
    if (e != cudaSuccess) return int(e);
    if (q != cudaDriverEntryPointSuccess || !f) return int(cudaErrorNotSupported);
    e = cudaFuncSetAttribute(gemm_gelu_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
    if (e != cudaSuccess) return int(e);
    fn = reinterpret_cast<EncodeFn>(f);
  }
  if (px != x)   { if (encode(fn, &mA, x, GM, GK, BM)) return int(cudaErrorInvalidValue); px = x; }
  if (pw != w)   { if (encode(fn, &mB, w, GN, GK, BN / 2)) return int(cudaErrorInvalidValue); pw = w; }
  if (po != out) { if (encode(fn, &mC, out, GM, GN, 64)) return int(cudaErrorInvalidValue); po = out; }

  cudaLaunchConfig_t cfg = {};
  cfg.gridDim = dim3(2 * NC);
  cfg.blockDim = dim3(384);
  cfg.dynamicSmemBytes = SMEM;
  cfg.stream = stream;
  cudaLaunchAttribute at[1];
  at[0].id = cudaLaunchAttributeClusterDimension;
  at[0].val.clusterDim.x = 2;
  at[0].val.clusterDim.y = 1;
  at[0].val.clusterDim.z = 1;
  cfg.attrs = at;
  cfg.numAttrs = 1;
  static int checked = 0;
  if (!checked) {                        // the clusters wait for each other at the end
    int n = 0;
    cudaError_t q = cudaOccupancyMaxActiveClusters(&n, gemm_gelu_kernel, &cfg);
    if (q != cudaSuccess) return int(q);
    if (n < NC) return int(cudaErrorCooperativeLaunchTooLarge);
    checked = 1;
  }
  cudaError_t e = cudaLaunchKernelEx(&cfg, gemm_gelu_kernel, mA, mB, mC,
                                     static_cast<const uint32_t*>(bias),
                                     static_cast<float4*>(scratch), static_cast<int*>(flags));
  if (e != cudaSuccess) return int(e);
  return int(cudaGetLastError());
}
"""

lib = runtime.cute(
    _SRC,
    flags=[f"-DGROUP_M={GROUP}", f"-DSKEW={SKEW}", f"-DSTREAMK={STREAMK}"],
)

_M, _N, _K = 8192, 8192, 4096


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        assert dim == _K and hidden == _N
        self.linear = nn.Linear(dim, hidden, dtype=torch.bfloat16)
        self._packed = None

    def _setup(self, x):
        w = self.linear.weight.detach()
        b = self.linear.bias.detach()
        assert w.is_cuda and w.is_contiguous() and b.is_contiguous()
        assert w.dtype == torch.bfloat16 and tuple(w.shape) == (_N, _K)
        # partial sums of the tiles cut along K: 66 clusters x 2 CTAs x 2 warpgroups x 64 KiB
        scratch = torch.empty(66 * 4 * 64 * 256, dtype=torch.float32, device=x.device)
        flags = torch.zeros(66 * 4, dtype=torch.int32, device=x.device)
        self._packed = (w, b, scratch, flags)
        return self._packed

    def forward(self, x):
        assert x.shape == (_M, _K) and x.dtype == torch.bfloat16 and x.is_contiguous()
        w, b, scratch, flags = self._packed or self._setup(x)
        out = torch.empty((_M, _N), dtype=torch.bfloat16, device=x.device)
        lib.gemm_gelu(x, w, b, out, scratch, flags)
        return out
