"""The functions that products in CUDA share. INSTRUCTIONS are those that C++ has no words for, one each."""

from __future__ import annotations

INSTRUCTIONS = """\
enum Kind { TF32, BF16, F16 };
// d += a * b: 16 rows by 8 columns by 32 bytes of the sum, spread over a warp.
#define MULTIPLY(shape, type) \\
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 " \\
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \\
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \\
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <Kind KIND> __device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (KIND == TF32) MULTIPLY("m16n8k8", "tf32");
    else if constexpr (KIND == BF16) MULTIPLY("m16n8k16", "bf16");
    else MULTIPLY("m16n8k16", "f16");
}
// Four squares of 8 lines by 16 bytes, a lane naming one line; TURNED: of halves, transposed.
template <bool TURNED> __device__ inline void squares(unsigned (&r)[4], const void* line) {
    const unsigned at = unsigned(__cvta_generic_to_shared(line));
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Copies that go on by themselves, in the groups that `commit` closes; zeros where there is nothing to copy.
template <int BYTES> __device__ inline void copy(void* to, const void* from, bool there) {
    const unsigned at = unsigned(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(at), "l"(from), "n"(BYTES), "r"(there ? BYTES : 0) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ inline void arrived() {  // all groups but the last LEFT
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
"""

TILE = """\
// One operand's tile in shared memory: SIDE rows or columns by TILE_K terms of the sum; either lie side by side.
template <class Type, int SIDE, int TILE_K, bool ALONG, int PAD> struct Tile {
    using T = Type;
    static constexpr bool DEEPLY = ALONG;
    static constexpr int STRIDE = (DEEPLY ? TILE_K : SIDE) + PAD, SIZE = (DEEPLY ? SIDE : TILE_K) * STRIDE;
    static __device__ int at(int side, int deep) { return DEEPLY ? side * STRIDE + deep : deep * STRIDE + side; }
};
// N neighbours of shared memory, up to 16 bytes at once.
template <class T, int N> __device__ inline void take(T (&into)[N], const T* from) {
    constexpr int EACH = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<EACH * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        const W word = *(const W*)(from + i);
        memcpy(into + i, &word, sizeof word);
    }
}
template <class T, class C, int N> __device__ inline void lay(T* to, const C (&from)[N]) {
    constexpr int EACH = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<EACH * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        T piece[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) piece[j] = T(from[i + j]);
        W word;
        memcpy(&word, piece, sizeof word);
        *(W*)(to + i) = word;
    }
}
"""

FRAGMENTS = """\
// To the nearest number with 10 bits behind the point; the rest of them the tensor cores do not look at.
__device__ inline unsigned rounded(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return fabsf(value) < INFINITY ? bits + 0x1000u : bits;
}
// 16 rows or columns by 32 bytes of the sum, as `multiply` takes them: a register has 8 by 16 bytes.
template <class Tile> __device__ inline void fragment(unsigned (&r)[4], const typename Tile::T* tile, int side, int deep) {
    constexpr int BYTES = sizeof(typename Tile::T);
    const int lane = threadIdx.x % 32;
    if constexpr (Tile::DEEPLY) {
        squares<false>(r, tile + Tile::at(side + lane % 16, deep + lane / 16 * (16 / BYTES)));
    } else if constexpr (BYTES == 2) {
        squares<true>(r, tile + Tile::at(side + lane / 8 % 2 * 8, deep + lane / 16 * 8 + lane % 8));
    } else {
#pragma unroll
        for (int q = 0; q < 4; ++q) memcpy(&r[q], tile + Tile::at(side + q % 2 * 8 + lane / 4, deep + q / 2 * 4 + lane % 4), 4);
    }
    if constexpr (BYTES == 4) {
#pragma unroll
        for (int q = 0; q < 4; ++q) r[q] = rounded(r[q]);
    }
}
"""
