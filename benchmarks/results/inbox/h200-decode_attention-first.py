import torch
import torch.nn as nn
from kernelpro import runtime

WARPS = 4  # tune: 4, 8

SRC = r"""
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <stdint.h>
#include <math_constants.h>

#ifndef WARPS
#define WARPS 4
#endif

constexpr int LENGTH = 4096;
constexpr int DIM = 128;
constexpr int GROUPS = 8;
constexpr int SHARE = 4;
constexpr int QPITCH = 320;   // bytes per head in shared memory: two heads of a phase hit different banks

__device__ __forceinline__ void ldg128(uint32_t (&r)[4], const uint8_t* p) {
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p));
}
__device__ __forceinline__ void lds128(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t transpose8(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

__global__ void __launch_bounds__(WARPS * 32, 16 / WARPS)
decode_kernel(const uint4* __restrict__ q, const uint8_t* __restrict__ k, const uint8_t* __restrict__ v,
              const long long* __restrict__ lengths, __nv_bfloat16* __restrict__ out, float c) {
  __shared__ __align__(16) uint8_t sq[8 * QPITCH];
  __shared__ float sm_m[WARPS][SHARE], sm_l[WARPS][SHARE];
  __shared__ __align__(16) float sm_o[WARPS][SHARE][DIM];

  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, qd = lane & 3, gr = lane >> 2;
  const int bg = blockIdx.x;
  long long len64 = lengths[bg / GROUPS];
  const int len = len64 < 0 ? 0 : (len64 > LENGTH ? LENGTH : (int)len64);
  const int nblk = (len + 15) >> 4;

  // K: rows gr and gr + 8 of a block of 16 keys, 16-byte chunks qd, qd + 4, ...
  const uint8_t* kp = k + (size_t)bg * LENGTH * DIM * 2 + (size_t)gr * 256 + qd * 16;
  // V: rows 2 qd, 2 qd + 1, 2 qd + 8, 2 qd + 9, chunks gr and gr + 8
  const uint8_t* vp = v + (size_t)bg * LENGTH * DIM * 2 + (size_t)qd * 512 + gr * 16;
  uint32_t kr[2][4][4], vr[4][2][4];

  int blk = warp;
  if (blk < nblk) {
    const uint8_t* p = kp + (size_t)blk * 4096;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 4; ++i) ldg128(kr[r][i], p + r * 2048 + i * 64);
    p = vp + (size_t)blk * 4096;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) ldg128(vr[j][h], p + (j & 1) * 256 + (j >> 1) * 2048 + h * 128);
  }

  if (tid < 128) {
    const int row = tid >> 4, ch = tid & 15;
    uint4 val = make_uint4(0u, 0u, 0u, 0u);
    if (row < SHARE) val = q[(size_t)(bg * SHARE + row) * 16 + ch];
    *reinterpret_cast<uint4*>(sq + row * QPITCH + ch * 16) = val;
  }
  __syncthreads();
  const uint32_t qa = (uint32_t)__cvta_generic_to_shared(sq) + gr * QPITCH + qd * 16;

  float o[8][4];
#pragma unroll
  for (int t = 0; t < 8; ++t) { o[t][0] = 0.f; o[t][1] = 0.f; o[t][2] = 0.f; o[t][3] = 0.f; }
  float m0 = -CUDART_INF_F, m1 = -CUDART_INF_F, l0 = 0.f, l1 = 0.f;

#pragma unroll 1
  for (; blk < nblk; blk += WARPS) {
    const int next = blk + WARPS;
    float sa[4] = {0.f, 0.f, 0.f, 0.f}, sb[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t b[4];
      lds128(b, qa + i * 64);
      mma(sa, kr[0][i][0], kr[1][i][0], kr[0][i][1], kr[1][i][1], b[0], b[1]);
      mma(sb, kr[0][i][2], kr[1][i][2], kr[0][i][3], kr[1][i][3], b[2], b[3]);
    }
    if (next < nblk) {
      const uint8_t* p = kp + (size_t)next * 4096;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) ldg128(kr[r][i], p + r * 2048 + i * 64);
    }
    // rows: keys gr, gr + 8; columns: heads 2 qd, 2 qd + 1
    float s0 = (sa[0] + sb[0]) * c, s1 = (sa[1] + sb[1]) * c, s2 = (sa[2] + sb[2]) * c, s3 = (sa[3] + sb[3]) * c;
    if (blk * 16 + 16 > len) {
      if (blk * 16 + gr >= len) { s0 = -CUDART_INF_F; s1 = -CUDART_INF_F; }
      if (blk * 16 + gr + 8 >= len) { s2 = -CUDART_INF_F; s3 = -CUDART_INF_F; }
    }
    float x0 = fmaxf(s0, s2), x1 = fmaxf(s1, s3);
#pragma unroll
    for (int w = 4; w < 32; w <<= 1) {
      x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, w));
      x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, w));
    }
    x0 = fmaxf(x0, m0);
    x1 = fmaxf(x1, m1);
    const float f0 = ex2(m0 - x0), f1 = ex2(m1 - x1);
    m0 = x0;
    m1 = x1;
    const float p0 = ex2(s0 - x0), p1 = ex2(s1 - x1), p2 = ex2(s2 - x0), p3 = ex2(s3 - x1);
    l0 = fmaf(l0, f0, p0 + p2);
    l1 = fmaf(l1, f1, p1 + p3);
    const uint32_t b0 = transpose8(pack2(p0, p1)), b1 = transpose8(pack2(p2, p3));
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      o[t][0] *= f0; o[t][1] *= f1; o[t][2] *= f0; o[t][3] *= f1;
      const uint32_t sel = (t & 1) ? 0x7632u : 0x5410u;
      const int w = t >> 1;
      mma(o[t], __byte_perm(vr[0][0][w], vr[1][0][w], sel), __byte_perm(vr[0][1][w], vr[1][1][w], sel),
          __byte_perm(vr[2][0][w], vr[3][0][w], sel), __byte_perm(vr[2][1][w], vr[3][1][w], sel), b0, b1);
    }
    if (next < nblk) {
      const uint8_t* p = vp + (size_t)next * 4096;
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) ldg128(vr[j][h], p + (j & 1) * 256 + (j >> 1) * 2048 + h * 128);
    }
  }

  // merge of the warps
#pragma unroll
  for (int w = 4; w < 32; w <<= 1) {
    l0 += __shfl_xor_sync(0xffffffffu, l0, w);
    l1 += __shfl_xor_sync(0xffffffffu, l1, w);
  }
  if (qd < 2) {
    if (gr == 0) {
      sm_m[warp][2 * qd] = m0; sm_m[warp][2 * qd + 1] = m1;
      sm_l[warp][2 * qd] = l0; sm_l[warp][2 * qd + 1] = l1;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e)        // head 2 qd + e
#pragma unroll
      for (int h = 0; h < 2; ++h)      // d = 64 h + 8 gr + t
#pragma unroll
        for (int t = 0; t < 8; t += 4)
          *reinterpret_cast<float4*>(&sm_o[warp][2 * qd + e][64 * h + 8 * gr + t]) =
              make_float4(o[t][2 * h + e], o[t + 1][2 * h + e], o[t + 2][2 * h + e], o[t + 3][2 * h + e]);
  }
  __syncthreads();
  if (tid < 128) {
    const int head = tid >> 5, d = (tid & 31) * 4;
    float mx = sm_m[0][head];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) mx = fmaxf(mx, sm_m[w][head]);
    float sum = 0.f;
    float4 r = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float f = ex2(sm_m[w][head] - mx);
      const float4 u = *reinterpret_cast<const float4*>(&sm_o[w][head][d]);
      sum = fmaf(sm_l[w][head], f, sum);
      r.x = fmaf(u.x, f, r.x); r.y = fmaf(u.y, f, r.y); r.z = fmaf(u.z, f, r.z); r.w = fmaf(u.w, f, r.w);
    }
    const float inv = 1.f / sum;
    *reinterpret_cast<uint2*>(out + (size_t)(bg * SHARE + head) * DIM + d) =
        make_uint2(pack2(r.x * inv, r.y * inv), pack2(r.z * inv, r.w * inv));
  }
}

extern "C" int decode(const void* q, const void* k, const void* v, const void* lengths, void* out, int pairs, float c,
                      cudaStream_t stream) {
  decode_kernel<<<pairs, WARPS * 32, 0, stream>>>((const uint4*)q, (const uint8_t*)k, (const uint8_t*)v,
                                                  (const long long*)lengths, (__nv_bfloat16*)out, c);
  return (int)cudaGetLastError();
}
"""

lib = runtime.cuda(SRC, flags=[f"-DWARPS={WARPS}"])


class ModelNew(nn.Module):
    def forward(self, q, k, v, lengths):
        batch, groups, share, dim = q.shape
        assert groups == 8 and share == 4 and dim == 128 and k.shape[2] == 4096 and q.dtype == torch.bfloat16
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        lengths = lengths.to(device=q.device, dtype=torch.int64).contiguous()
        out = torch.empty_like(q)
        lib.decode(q, k, v, lengths, out, batch * groups, dim ** -0.5 * 1.4426950408889634)
        return out
