import torch
import torch.nn as nn
from kernelpro import runtime

WARPS = 4       # tune: 2, 4, 8
STAGES = 3      # tune: 2, 3, 4, 6
SPLIT = 1       # tune: 1, 2, 4
PREFETCH = 128  # tune: 0, 128, 256
# tune-if: WARPS * STAGES <= 24
# tune-if: WARPS * STAGES >= 6

SRC = r"""
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cstdint>

namespace {
constexpr int kL = 4096, kD = 128, kGroups = 8, kShare = 4, kPairs = 512;
constexpr int W = DA_WARPS, ST = DA_STAGES, SP = DA_SPLIT;
constexpr int TBYTES = 16 * 256;            // one tile of K or of V: 16 keys
constexpr int STAGE_BYTES = 2 * TBYTES;
constexpr int SMEM = W * ST * STAGE_BYTES;
constexpr int cmin(int a, int b) { return a < b ? a : b; }
constexpr int cmax(int a, int b) { return a > b ? a : b; }
constexpr int MINB = cmax(1, cmin(233472 / (SMEM + 2048), 12 / W));
static_assert(W * ST * 16 <= kL / SP, "prologue must stay inside a split");

// scratch, used only when SP > 1; every partial is written before it is read, counters return to zero
constexpr int kSlots = SP > 1 ? SP * kPairs : 1;
__device__ float4 g_part[kSlots * 128];
__device__ float g_ml[kSlots * 8];
__device__ unsigned g_cnt[kPairs];

#if DA_PREFETCH == 256
#define DA_HINT ".L2::256B"
#elif DA_PREFETCH == 128
#define DA_HINT ".L2::128B"
#else
#define DA_HINT ""
#endif

__device__ __forceinline__ void cp16(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global" DA_HINT " [%0], [%1], 16, %2;" :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
__device__ __forceinline__ void ldm(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
__device__ __forceinline__ void ldmt(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t movtrans(uint32_t x) {
  uint32_t y; asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x)); return y;
}
__device__ __forceinline__ uint32_t pack(float lo, float hi) {   // first source operand is the HIGH half
  uint32_t y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__global__ void __launch_bounds__(W * 32, MINB)
decode_kernel(const uint16_t* __restrict__ q, const uint16_t* __restrict__ k, const uint16_t* __restrict__ v,
              const long long* __restrict__ lengths, uint16_t* __restrict__ out) {
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ float sm_m[W][4], sm_l[W][4];
  __shared__ int sm_last;
  const float NEG = __int_as_float(0xff800000);
  const float SC = 0.08838834764831845f * 1.4426950408889634f;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const int pair = blockIdx.x / SP, sp = blockIdx.x % SP;

  int length = (int)lengths[pair / kGroups];
  length = max(0, min(length, kL));
  const int ntot = (length + 15) >> 4;
  const int t0 = SP == 1 ? 0 : ntot * sp / SP;
  const int t1 = SP == 1 ? ntot : ntot * (sp + 1) / SP;

  const int h = lane >> 4, c = lane & 15;              // copy: lane moves chunk c of row 2i+h
  const char* kg = (const char*)k + (size_t)pair * kL * 256 + lane * 16;   // h*256 + c*16 == lane*16
  const char* vg = (const char*)v + (size_t)pair * kL * 256 + lane * 16;
  const uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem) + warp * (ST * STAGE_BYTES);

  auto issue = [&](int tile, int stage, int limit) {
    const uint32_t base = ring + stage * STAGE_BYTES;
    const size_t off = (size_t)tile * TBYTES;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 2 * i + h;
      cp16(base + row * 256 + ((c ^ (row & 7)) << 4), kg + off + i * 512, tile * 16 + row < limit ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = 2 * i + h;
      cp16(base + TBYTES + row * 256 + ((c ^ (row & 7)) << 4), vg + off + i * 512, tile * 16 + row < limit ? 16 : 0);
    }
  };

#pragma unroll
  for (int i = 0; i < ST; ++i) {
    const int tile = t0 + warp + i * W;
    if (tile < kL / 16) issue(tile, i, kL);
    cp_commit();
  }

  uint32_t qf[8][2];
  const uint16_t* qp = q + (size_t)(pair * kShare + g) * kD + 2 * t;   // read for g < kShare only
#pragma unroll
  for (int kk = 0; kk < 8; ++kk) {
    qf[kk][0] = g < kShare ? *(const uint32_t*)(qp + kk * 16) : 0u;
    qf[kk][1] = g < kShare ? *(const uint32_t*)(qp + kk * 16 + 8) : 0u;
  }

  float o[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.f;
  float m0 = NEG, m1 = NEG, l0 = 0.f, l1 = 0.f;
  const int x = lane & 7;
  const uint32_t krow = (lane & 15) * 256, kch = lane >> 4;
  const uint32_t vrow = TBYTES + ((lane & 7) + ((lane >> 4) << 3)) * 256, vch = (lane >> 3) & 1;

  int stage = 0;
#pragma unroll 1
  for (int tile = t0 + warp; tile < t1; tile += W) {
    cp_wait<ST - 1>();
    __syncwarp();
    const uint32_t base = ring + stage * STAGE_BYTES;
    uint32_t kf[8][4], vf[8][4];
#pragma unroll
    for (int kk = 0; kk < 8; ++kk) ldm(kf[kk], base + krow + (((2 * kk + kch) ^ x) << 4));
#pragma unroll
    for (int mt = 0; mt < 8; ++mt) ldmt(vf[mt], base + vrow + (((2 * mt + vch) ^ x) << 4));
    __syncwarp();
    const int next = tile + ST * W;
    if (next < t1) issue(next, stage, length);
    cp_commit();
    stage = stage + 1 == ST ? 0 : stage + 1;

    float s[4] = {0.f, 0.f, 0.f, 0.f}, u[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int kk = 0; kk < 8; kk += 2) {
      mma(s, kf[kk], qf[kk][0], qf[kk][1]);
      mma(u, kf[kk + 1], qf[kk + 1][0], qf[kk + 1][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] += u[i];
    if (tile * 16 + 16 > length) {
      if (tile * 16 + g >= length) s[0] = s[1] = NEG;
      if (tile * 16 + g + 8 >= length) s[2] = s[3] = NEG;
    }
    float x0 = fmaxf(s[0], s[2]), x1 = fmaxf(s[1], s[3]);
#pragma unroll
    for (int d = 4; d <= 16; d <<= 1) {
      x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, d));
      x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, d));
    }
    const float n0 = fmaxf(m0, x0 * SC), n1 = fmaxf(m1, x1 * SC);   // finite: a tile has at least one valid key
    const float a0 = ex2(m0 - n0), a1 = ex2(m1 - n1);               // first tile: ex2(-inf) = 0
    m0 = n0; m1 = n1;
    const float p0 = ex2(fmaf(s[0], SC, -n0)), p1 = ex2(fmaf(s[1], SC, -n1));
    const float p2 = ex2(fmaf(s[2], SC, -n0)), p3 = ex2(fmaf(s[3], SC, -n1));
    l0 = l0 * a0 + (p0 + p2);
    l1 = l1 * a1 + (p1 + p3);
    const uint32_t b0 = movtrans(pack(p0, p1)), b1 = movtrans(pack(p2, p3));
#pragma unroll
    for (int mt = 0; mt < 8; ++mt) {
      o[mt][0] *= a0; o[mt][1] *= a1; o[mt][2] *= a0; o[mt][3] *= a1;
      mma(o[mt], vf[mt], b0, b1);
    }
  }

#pragma unroll
  for (int d = 4; d <= 16; d <<= 1) {
    l0 += __shfl_xor_sync(0xffffffffu, l0, d);
    l1 += __shfl_xor_sync(0xffffffffu, l1, d);
  }
  cp_wait<0>();
  __syncthreads();                       // all rings of the CTA are idle: reuse the memory
  float* red = (float*)smem;             // [W][4][128]
  if (t < 2) {
#pragma unroll
    for (int mt = 0; mt < 8; ++mt) {
      float* r0 = red + (warp * 4 + 2 * t) * 128 + mt * 16 + g;
      r0[0] = o[mt][0]; r0[128] = o[mt][1]; r0[8] = o[mt][2]; r0[136] = o[mt][3];
    }
    if (g == 0) {
      sm_m[warp][2 * t] = m0; sm_m[warp][2 * t + 1] = m1;
      sm_l[warp][2 * t] = l0; sm_l[warp][2 * t + 1] = l1;
    }
  }
  __syncthreads();
  for (int e = tid; e < 128; e += W * 32) {          // e = query * 32 + d / 4
    const int qi = e >> 5;
    float M = NEG;
#pragma unroll
    for (int w = 0; w < W; ++w) M = fmaxf(M, sm_m[w][qi]);
    float sum = 0.f; float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float f = sm_m[w][qi] == NEG ? 0.f : ex2(sm_m[w][qi] - M);
      const float4 b = ((const float4*)red)[w * 128 + e];
      sum += f * sm_l[w][qi];
      a.x += f * b.x; a.y += f * b.y; a.z += f * b.z; a.w += f * b.w;
    }
    if constexpr (SP == 1) {
      const float inv = 1.f / sum;
      ((uint2*)out)[pair * 128 + e] = make_uint2(pack(a.x * inv, a.y * inv), pack(a.z * inv, a.w * inv));
    } else {
      g_part[blockIdx.x * 128 + e] = a;
      if ((e & 31) == 0) { g_ml[blockIdx.x * 8 + qi] = M; g_ml[blockIdx.x * 8 + 4 + qi] = sum; }
    }
  }
  if constexpr (SP > 1) {
    __threadfence();
    __syncthreads();
    if (tid == 0) sm_last = atomicAdd(&g_cnt[pair], 1u) == (unsigned)(SP - 1);
    __syncthreads();
    if (!sm_last) return;
    __threadfence();
    for (int e = tid; e < 128; e += W * 32) {
      const int qi = e >> 5;
      float M = NEG;
      for (int j = 0; j < SP; ++j) M = fmaxf(M, __ldcg(&g_ml[(pair * SP + j) * 8 + qi]));
      float sum = 0.f; float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
      for (int j = 0; j < SP; ++j) {
        const int slot = pair * SP + j;
        const float mj = __ldcg(&g_ml[slot * 8 + qi]);
        const float f = mj == NEG ? 0.f : ex2(mj - M);
        const float4 b = __ldcg(&g_part[slot * 128 + e]);
        sum += f * __ldcg(&g_ml[slot * 8 + 4 + qi]);
        a.x += f * b.x; a.y += f * b.y; a.z += f * b.z; a.w += f * b.w;
      }
      const float inv = 1.f / sum;
      ((uint2*)out)[pair * 128 + e] = make_uint2(pack(a.x * inv, a.y * inv), pack(a.z * inv, a.w * inv));
    }
    if (tid == 0) g_cnt[pair] = 0u;
  }
}
}  // namespace

extern "C" int decode_attention(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, const long long* lengths, __nv_bfloat16* out, cudaStream_t stream) {
  static bool ready = false;
  if (!ready) {
    cudaError_t e = cudaFuncSetAttribute(decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
    if (e != cudaSuccess) return (int)e;
    e = cudaFuncSetAttribute(decode_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    if (e != cudaSuccess) return (int)e;
    ready = true;
  }
  decode_kernel<<<kPairs * SP, W * 32, SMEM, stream>>>(
      (const uint16_t*)q, (const uint16_t*)k, (const uint16_t*)v, lengths, (uint16_t*)out);
  return (int)cudaGetLastError();
}
"""

lib = runtime.cuda(SRC, flags=[f"-DDA_WARPS={WARPS}", f"-DDA_STAGES={STAGES}", f"-DDA_SPLIT={SPLIT}", f"-DDA_PREFETCH={PREFETCH}"])


class ModelNew(nn.Module):
    def __init__(self, *init):
        super().__init__()
        self._out = None

    def _prepare(self, q, k, v, lengths):
        assert q.shape == (64, 8, 4, 128) and k.shape == (64, 8, 4096, 128) and v.shape == k.shape and lengths.shape == (64,)
        assert q.dtype == k.dtype == v.dtype == torch.bfloat16 and lengths.dtype == torch.int64
        assert q.is_contiguous() and k.is_contiguous() and v.is_contiguous() and lengths.is_contiguous()
        assert q.is_cuda and k.is_cuda and v.is_cuda and lengths.is_cuda
        self._out = torch.empty_like(q)  # private buffer, written whole by every call
        return self._out

    def forward(self, q, k, v, lengths):
        out = self._out
        if out is None:
            out = self._prepare(q, k, v, lengths)
        lib.decode_attention(q, k, v, lengths, out)
        return out
