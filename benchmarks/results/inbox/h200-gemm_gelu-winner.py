"""bf16 linear + bias + tanh-GELU, 8192 x 8192 x 4096, one persistent kernel (CuTe, wgmma, TMA).

66 clusters of two CTAs; a cluster computes 256 x 256 tiles (each CTA 128 x 256, the weight tile is
multicast). 1024 tiles are 15 full waves and 34 tiles: those 34 are split along K over all clusters
(stream-K), the helpers' partial sums being written at the start and added by the owners at the end.
"""

import torch
import torch.nn as nn

from kernelpro import runtime

GROUP = 8  # tune: 4, 8, 16
SPLIT = 1  # tune: 0, 1
STAGGER = 1  # tune: 0, 1
STORE_HINT = 1  # tune: 0, 1

SOURCE = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cute/tensor.hpp>
#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_types.h>

using namespace cute;
using T = cutlass::bfloat16_t;
using Bar = cutlass::arch::ClusterTransactionBarrier;

constexpr int M = 8192, N = 8192, K = 4096;
constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4;
constexpr int KB = K / BK;                       // 64 k-blocks in a tile
constexpr int TM = M / (2 * BM), TN = N / BN;    // cluster tiles: 32 x 32
constexpr int TILES = TM * TN;                   // 1024
constexpr int CLUSTERS = 66;
constexpr int WAVES = TILES / CLUSTERS;          // 15 full waves
constexpr int DP = WAVES * CLUSTERS;             // 990 tiles done whole
constexpr int OWN = TILES - DP;                  // 34 tiles split along K
constexpr int HELP = CLUSTERS - OWN;             // 32 helper clusters, ids 0..31
constexpr int OWN_KB = 34;                       // k-blocks [0, 34) of a split tile: its owner
constexpr int REST = KB - OWN_KB;                // 30 k-blocks of it: helpers
constexpr int HELP_KB = 32;                      // k-blocks of a helper
static_assert(HELP * HELP_KB >= OWN * REST, "helpers cover the rest");
static_assert((HELP - 1) * HELP_KB < OWN * REST, "every helper has work");
static_assert(HELP_KB >= REST && HELP_KB - REST == 2 && REST % 2 == 0, "at most two pieces each");

constexpr int A_BYTES = BM * BK * 2;             // 16 KB
constexpr int B_BYTES = BN * BK * 2;             // 32 KB
constexpr int OFF_A = 0;
constexpr int OFF_B = OFF_A + STAGES * A_BYTES;
constexpr int OFF_C = OFF_B + STAGES * B_BYTES;  // 2 warpgroups x 2 buffers x 8 KB
constexpr int OFF_BIAS = OFF_C + 4 * 8192;       // 2 x 512
constexpr int OFF_BAR = OFF_BIAS + 2 * BN * 2;
constexpr int SMEM = OFF_BAR + 2 * STAGES * 8 + 1024;
static_assert(SMEM <= 232448, "shared memory");

constexpr int WS_PIECE = 32 * 128;               // float4 of one warpgroup's partial sums (64 KB)

using SLA = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{}));
using SLB = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<BN>, Int<BK>, Int<STAGES>>{}));
static_assert(cosize_v<SLA> * 2 == STAGES * A_BYTES && cosize_v<SLB> * 2 == STAGES * B_BYTES, "layouts");

struct Seg { int tile, k0, n, kind; };           // kind 0: whole, 1: partial sums out, 2: owner of a split tile

__device__ __forceinline__ bool segment(int c, int it, Seg& s) {
#if KP_SPLIT
  int w = it;
  if (c < HELP) {
    int beg = c * HELP_KB;
    int end = min(beg + HELP_KB, OWN * REST);
    int tf = beg / REST;
    int mid = min(end, (tf + 1) * REST);
    int pieces = end > mid ? 2 : 1;
    if (it < pieces) {
      s.kind = 1;
      s.tile = DP + tf + it;
      s.k0 = it == 0 ? OWN_KB + beg - tf * REST : OWN_KB;
      s.n = it == 0 ? mid - beg : end - mid;
      return true;
    }
    w = it - pieces;
  } else if (it == WAVES) {
    s.kind = 2; s.tile = DP + c - HELP; s.k0 = 0; s.n = OWN_KB;
    return true;
  }
  s.kind = 0; s.tile = w * CLUSTERS + c; s.k0 = 0; s.n = KB;
  return w < WAVES;
#else
  s.kind = 0; s.tile = it * CLUSTERS + c; s.k0 = 0; s.n = KB;
  return s.tile < TILES;
#endif
}

// The helpers of split tile t (0..33) and the slots their partial sums lie in; one or two of them.
__device__ __forceinline__ int slots_of(int t, int& s0, int& s1) {
  int a = (t * REST) / HELP_KB, b = (t * REST + REST - 1) / HELP_KB;
  s0 = 2 * a + (t - (a * HELP_KB) / REST);
  s1 = 2 * b + (t - (b * HELP_KB) / REST);
  return a == b ? 1 : 2;
}

__device__ __forceinline__ void tile_at(int tile, int& m, int& n) {
  int g = tile / (KP_GROUP * TN), r = tile % (KP_GROUP * TN);
  m = g * KP_GROUP + r % KP_GROUP;
  n = r / KP_GROUP;
}

__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ float gelu(float v) {
  float u = v * fmaf(0.79788456080286536f * 0.044715f, v * v, 0.79788456080286536f);
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
  float h = 0.5f * v;
  return fmaf(h, t, h);
}
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

__device__ __forceinline__ void store_box(const CUtensorMap* map, const void* smem, int c0, int c1) {
#if KP_STORE_HINT
  uint64_t hint = 0x12F0000000000000ull;  // evict first
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;"
    :: "l"(reinterpret_cast<uint64_t>(map)), "r"(cast_smem_ptr_to_uint(smem)), "r"(c0), "r"(c1), "l"(hint) : "memory");
#else
  SM90_TMA_STORE_2D::copy(map, smem, c0, c1);
#endif
}

__global__ void __launch_bounds__(384, 1)
linear_gelu_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                   const __grid_constant__ CUtensorMap map_c, const T* __restrict__ bias,
                   float4* ws, int* flags) {
  extern __shared__ uint8_t raw[];
  uint8_t* smem = raw + ((1024u - (cast_smem_ptr_to_uint(raw) & 1023u)) & 1023u);
  T* sa = reinterpret_cast<T*>(smem + OFF_A);
  T* sb = reinterpret_cast<T*>(smem + OFF_B);
  Bar* full = reinterpret_cast<Bar*>(smem + OFF_BAR);
  Bar* empty = full + STAGES;

  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);
  const int rank = int(cute::block_rank_in_cluster());
  const int cluster = int(blockIdx.x) / 2;

  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(&map_a);
    cute::prefetch_tma_descriptor(&map_b);
    cute::prefetch_tma_descriptor(&map_c);
    for (int i = 0; i < STAGES; ++i) {
      full[i].init(1);
      empty[i].init(4);      // two warpgroups of each of the two CTAs
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  cute::cluster_arrive_relaxed();
  cute::cluster_wait();

  if (group == 0) {
    // ------------------------------------------------------------ producer
    cutlass::arch::warpgroup_reg_dealloc<40>();
    const int pwarp = __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);
    if (pwarp == 0 && cute::elect_one_sync()) {
      const uint64_t hint = 0x1000000000000000ull;   // evict normal
      int stage = 0; uint32_t phase = 0;
      Seg s;
      CUTE_NO_UNROLL
      for (int it = 0; segment(cluster, it, s); ++it) {
        int tm, tn; tile_at(s.tile, tm, tn);
        const int row_a = (tm * 2 + rank) * BM;
        const int row_b = tn * BN + rank * (BN / 2);
#if KP_SPLIT
        if (s.kind == 2) {
          int s0, s1; int c = slots_of(s.tile - DP, s0, s1);
          CUTE_NO_UNROLL
          for (int j = 0; j < c; ++j) {
            const char* p = reinterpret_cast<const char*>(ws + size_t((j ? s1 : s0) * 2 + rank) * 2 * WS_PIECE);
            CUTE_NO_UNROLL
            for (int q = 0; q < 8; ++q) SM90_BULK_COPY_G2S::PREFETCH::copy(p + q * 16384, 16384);
          }
        }
#endif
        CUTE_NO_UNROLL
        for (int k = 0; k < s.n; ++k) {
          empty[stage].wait(phase ^ 1);
          uint64_t* mb = reinterpret_cast<uint64_t*>(&full[stage]);
          const bool with_bias = k == 0 && s.kind != 1;
          full[stage].arrive_and_expect_tx(A_BYTES + B_BYTES + (with_bias ? BN * 2 : 0));
          const int kc = (s.k0 + k) * BK;
          SM90_TMA_LOAD_2D::copy(&map_a, mb, hint, sa + stage * (BM * BK), kc, row_a);
          SM90_TMA_LOAD_MULTICAST_2D::copy(&map_b, mb, uint16_t(3), hint,
                                           sb + stage * (BN * BK) + rank * (BN / 2 * BK), kc, row_b);
          if (with_bias)
            SM90_BULK_COPY_G2S::copy(bias + tn * BN, mb, smem + OFF_BIAS + (it & 1) * (BN * 2), BN * 2);
          if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
      }
    }
  } else {
    // ------------------------------------------------------------ consumers
    cutlass::arch::warpgroup_reg_alloc<232>();
    const int wg = group - 1;
    const int tid = int(threadIdx.x) & 127;
    const int warp = tid >> 5, lane = tid & 31;
    const bool releases = lane == 0 && warp < 2;    // warp 0 tells CTA 0, warp 1 tells CTA 1

    Tensor sA = make_tensor(make_smem_ptr(sa), SLA{});
    Tensor sB = make_tensor(make_smem_ptr(sb), SLB{});
    auto mma = make_tiled_mma(SM90_64x256x16_F32BF16BF16_SS<GMMA::Major::K, GMMA::Major::K>{},
                              Layout<Shape<_2, _1, _1>>{});
    auto thr = mma.get_slice(wg * 128);
    Tensor tA = thr.make_fragment_A(thr.partition_A(sA));    // (MMA, 1, 4, STAGES)
    Tensor tB = thr.make_fragment_B(thr.partition_B(sB));
    Tensor acc = partition_fragment_C(mma, Shape<Int<BM>, Int<BN>>{});
    static_assert(decltype(size(acc))::value == 128, "accumulators");
    static_assert(decltype(size<2>(tA))::value == 4 && decltype(size<1>(tA))::value == 1, "k steps");

    // stmatrix: lane's row and swizzle within the warpgroup's 64 x 64 box
    const int srow = warp * 16 + (lane & 15);
    uint8_t* cbuf = smem + OFF_C + wg * 16384;
    const int schunk = lane >> 4;

    int stage = 0; uint32_t phase = 0;
    Seg s;
    for (int it = 0; segment(cluster, it, s); ++it) {
#if KP_STAGGER
      if (it == 0 && wg == 1) bar_sync(3, 256);
#endif
      full[stage].wait(phase);
      mma.accumulate_ = GMMA::ScaleOut::Zero;
      warpgroup_fence_operand(acc);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        gemm(mma, tA(_, _, i, stage), tB(_, _, i, stage), acc);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      warpgroup_fence_operand(acc);
#if KP_STAGGER
      if (it == 0 && wg == 0) bar_arrive(3, 256);
#endif
      int prev = stage;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }

      CUTE_NO_UNROLL
      for (int k = 1; k < s.n; ++k) {
        full[stage].wait(phase);
        warpgroup_fence_operand(acc);
        warpgroup_arrive();
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) gemm(mma, tA(_, _, i, stage), tB(_, _, i, stage), acc);
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        warpgroup_fence_operand(acc);
        if (releases) empty[prev].arrive(uint32_t(warp));
        prev = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      warpgroup_wait<0>();
      warpgroup_fence_operand(acc);
      if (releases) empty[prev].arrive(uint32_t(warp));

#if KP_SPLIT
      if (s.kind == 1) {
        const int piece = ((2 * cluster + it) * 2 + rank) * 2 + wg;
        float4* p = ws + size_t(piece) * WS_PIECE + tid;
        CUTE_UNROLL
        for (int q = 0; q < 32; ++q)
          __stcg(p + q * 128, make_float4(acc(4 * q), acc(4 * q + 1), acc(4 * q + 2), acc(4 * q + 3)));
        __threadfence();
        bar_sync(1 + wg, 128);
        if (tid == 0) asm volatile("st.release.gpu.global.b32 [%0], %1;" :: "l"(flags + piece), "r"(1) : "memory");
        continue;
      }
      if (s.kind == 2) {
        int s0, s1; const int c = slots_of(s.tile - DP, s0, s1);
        CUTE_NO_UNROLL
        for (int j = 0; j < c; ++j) {
          const int piece = ((j ? s1 : s0) * 2 + rank) * 2 + wg;
          if (tid == 0) {
            int v = 0;
            do {
              asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(flags + piece) : "memory");
            } while (v == 0);
            asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" :: "l"(flags + piece), "r"(0) : "memory");
          }
          bar_sync(1 + wg, 128);
          const float4* p = ws + size_t(piece) * WS_PIECE + tid;
          CUTE_UNROLL
          for (int q = 0; q < 32; ++q) {
            const float4 v = __ldcg(p + q * 128);
            acc(4 * q) += v.x; acc(4 * q + 1) += v.y; acc(4 * q + 2) += v.z; acc(4 * q + 3) += v.w;
          }
        }
      }
#endif

      int tm, tn; tile_at(s.tile, tm, tn);
      const int row = (tm * 2 + rank) * BM + wg * 64;
      const uint32_t* sbias = reinterpret_cast<const uint32_t*>(smem + OFF_BIAS + (it & 1) * (BN * 2)) + (lane & 3);
      CUTE_UNROLL
      for (int c = 0; c < 4; ++c) {              // 64 columns at a time
        uint32_t h[16];
        CUTE_UNROLL
        for (int j = 0; j < 8; ++j) {            // 8 columns at a time
          const uint32_t b2 = sbias[(c * 8 + j) * 4];
          const float b0 = __uint_as_float(b2 << 16), b1 = __uint_as_float(b2 & 0xffff0000u);
          const int x = (c * 8 + j) * 4;
          h[2 * j] = pack(gelu(acc(x) + b0), gelu(acc(x + 1) + b1));
          h[2 * j + 1] = pack(gelu(acc(x + 2) + b0), gelu(acc(x + 3) + b1));
        }
        uint8_t* box = cbuf + (c & 1) * 8192;
        if (tid == 0) tma_store_wait<1>();       // the box stored two chunks ago has been read
        bar_sync(1 + wg, 128);
        CUTE_UNROLL
        for (int j = 0; j < 4; ++j) {            // 16 columns: two 16-byte chunks
          uint8_t* d = box + srow * 128 + (((2 * j + schunk) ^ (srow & 7)) << 4);
          SM90_U32x4_STSM_N::copy(h[4 * j], h[4 * j + 1], h[4 * j + 2], h[4 * j + 3],
                                  *reinterpret_cast<uint128_t*>(d));
        }
        tma_store_fence();
        bar_sync(1 + wg, 128);
        if (tid == 0) {
          store_box(&map_c, box, tn * BN + c * 64, row);
          tma_store_arrive();
        }
      }
    }
    if (tid == 0) tma_store_wait<0>();
  }
  __syncwarp();
  cute::cluster_arrive();
  cute::cluster_wait();
}

// ---------------------------------------------------------------- host
typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode encoder() {
  static Encode f = nullptr;
  if (!f) {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult q;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &q) != cudaSuccess ||
        q != cudaDriverEntryPointSuccess)
      return nullptr;
    f = reinterpret_cast<Encode>(p);
  }
  return f;
}

static int encode(CUtensorMap* m, const void* p, int rows, int cols, int box_rows) {
  Encode f = encoder();
  if (!f) return 801;
  cuuint64_t dims[2] = {cuuint64_t(cols), cuuint64_t(rows)};
  cuuint64_t strides[1] = {cuuint64_t(cols) * 2};
  cuuint32_t box[2] = {64, cuuint32_t(box_rows)};
  cuuint32_t one[2] = {1, 1};
  CUresult r = f(m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(p), dims, strides, box, one,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? 0 : 1;
}

extern "C" int linear_gelu(const void* x, const void* w, const void* bias, void* y, void* ws, void* flags,
                           cudaStream_t stream) {
  alignas(64) static CUtensorMap ma, mb, mc;
  static const void *px = nullptr, *pw = nullptr, *py = nullptr;
  static bool ready = false;
  if (!ready) {
    cudaError_t e = cudaFuncSetAttribute(linear_gelu_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
    if (e != cudaSuccess) return int(e);
    ready = true;
  }
  if (px != x) { if (int e = encode(&ma, x, M, K, BM)) return e; px = x; }
  if (pw != w) { if (int e = encode(&mb, w, N, K, BN / 2)) return e; pw = w; }
  if (py != y) { if (int e = encode(&mc, y, M, N, 64)) return e; py = y; }

  cudaLaunchConfig_t cfg = {};
  cfg.gridDim = dim3(2 * CLUSTERS);
  cfg.blockDim = dim3(384);
  cfg.dynamicSmemBytes = SMEM;
  cfg.stream = stream;
  cudaLaunchAttribute at[1];
  at[0].id = cudaLaunchAttributeClusterDimension;
  at[0].val.clusterDim.x = 2; at[0].val.clusterDim.y = 1; at[0].val.clusterDim.z = 1;
  cfg.attrs = at;
  cfg.numAttrs = 1;
  cudaError_t e = cudaLaunchKernelEx(&cfg, linear_gelu_kernel, ma, mb, mc, reinterpret_cast<const T*>(bias),
                                     reinterpret_cast<float4*>(ws), reinterpret_cast<int*>(flags));
  if (e != cudaSuccess) return int(e);
  return int(cudaGetLastError());
}
"""

lib = runtime.cute(
    SOURCE,
    flags=[f"-DKP_GROUP={GROUP}", f"-DKP_SPLIT={SPLIT}", f"-DKP_STAGGER={STAGGER}", f"-DKP_STORE_HINT={STORE_HINT}"],
)


class ModelNew(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        assert dim == 4096 and hidden == 8192
        self.linear = nn.Linear(dim, hidden, dtype=torch.bfloat16)
        self._kept = None

    def forward(self, x):
        kept = self._kept
        if kept is None:
            w = self.linear.weight.detach()
            b = self.linear.bias.detach()
            assert x.dtype == torch.bfloat16 and w.dtype == torch.bfloat16 and b.dtype == torch.bfloat16
            assert w.shape == (8192, 4096) and w.is_contiguous() and b.is_contiguous()
            assert w.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0
            out = torch.empty(8192, 8192, dtype=torch.bfloat16, device=x.device)
            scratch = torch.empty(64 * 2 * 2 * 32 * 128 * 4, dtype=torch.float32, device=x.device)
            flags = torch.zeros(64 * 2 * 2, dtype=torch.int32, device=x.device)
            kept = self._kept = (w, b, out, scratch, flags)
        w, b, out, scratch, flags = kept
        assert x.shape == (8192, 4096) and x.is_contiguous()
        lib.linear_gelu(x, w, b, out, scratch, flags)
        return out
