"""Device functions of matrix products. INSTRUCTIONS wraps PTX instructions, one function each."""

from __future__ import annotations

INSTRUCTIONS = """\
enum MmaType { TF32, BF16, F16 };
// d += a * b for a warp: 16 rows by 8 columns by 32 bytes along k.
#define MMA(shape, type) \\
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 " \\
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \\
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \\
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <MmaType TYPE>
__device__ inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (TYPE == TF32) MMA("m16n8k8", "tf32");
    else if constexpr (TYPE == BF16) MMA("m16n8k16", "bf16");
    else MMA("m16n8k16", "f16");
}
// Loads four 8 x 16-byte matrices; each lane gives the address of one row. TRANSPOSED: for 16-bit elements.
template <bool TRANSPOSED> __device__ inline void load_matrix(unsigned (&r)[4], const void* row) {
    const unsigned address = unsigned(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
// Asynchronous copy to shared memory; writes zeros if out of bounds. `async_commit` closes a group of copies.
template <int BYTES> __device__ inline void async_copy(void* target, const void* source, bool in_bounds) {
    const unsigned address = unsigned(__cvta_generic_to_shared(target));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(address), "l"(source), "r"(in_bounds ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(address), "l"(source), "n"(BYTES), "r"(in_bounds ? BYTES : 0) : "memory");
}
__device__ inline void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void async_wait() {  // for all but the last PENDING groups
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
"""

TILE = """\
// An operand's tile in shared memory: SIDE rows or columns by TILE_K, contiguous along k or along the side.
template <class Type, int SIDE, int TILE_K, bool ALONG_K, int PAD> struct Tile {
    using T = Type;
    static constexpr bool K_CONTIGUOUS = ALONG_K;
    static constexpr int STRIDE = (K_CONTIGUOUS ? TILE_K : SIDE) + PAD;
    static constexpr int SIZE = (K_CONTIGUOUS ? SIDE : TILE_K) * STRIDE;
    static __device__ int offset(int side, int k) {
        return K_CONTIGUOUS ? side * STRIDE + k : k * STRIDE + side;
    }
};
// Vectorized access to N consecutive elements of shared memory, up to 16 bytes per instruction.
template <class T, int N> __device__ inline void load_shared(T (&values)[N], const T* address) {
    constexpr int PER_ACCESS = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<PER_ACCESS * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += PER_ACCESS) {
        const W word = *(const W*)(address + i);
        memcpy(values + i, &word, sizeof word);
    }
}
template <class T, class C, int N> __device__ inline void store_shared(T* address, const C (&values)[N]) {
    constexpr int PER_ACCESS = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
    using W = typename Word<PER_ACCESS * sizeof(T)>::type;
#pragma unroll
    for (int i = 0; i < N; i += PER_ACCESS) {
        T elements[PER_ACCESS];
#pragma unroll
        for (int j = 0; j < PER_ACCESS; ++j) elements[j] = T(values[i + j]);
        W word;
        memcpy(&word, elements, sizeof word);
        *(W*)(address + i) = word;
    }
}
"""

FRAGMENTS = """\
// Rounds to nearest TF32: tensor cores ignore the low 13 bits of the mantissa.
__device__ inline unsigned round_to_tf32(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return fabsf(value) < INFINITY ? bits + 0x1000u : bits;
}
// A fragment for `mma`: 16 rows or columns by 32 bytes along k; each register holds 8 x 16 bytes of it.
template <class Tile>
__device__ inline void load_fragment(unsigned (&r)[4], const typename Tile::T* tile, int side, int k) {
    constexpr int BYTES = sizeof(typename Tile::T);
    const int lane = threadIdx.x % 32;
    if constexpr (Tile::K_CONTIGUOUS) {
        load_matrix<false>(r, tile + Tile::offset(side + lane % 16, k + lane / 16 * (16 / BYTES)));
    } else if constexpr (BYTES == 2) {
        load_matrix<true>(r, tile + Tile::offset(side + lane / 8 % 2 * 8, k + lane / 16 * 8 + lane % 8));
    } else {
#pragma unroll
        for (int q = 0; q < 4; ++q)
            memcpy(&r[q], tile + Tile::offset(side + q % 2 * 8 + lane / 4, k + q / 2 * 4 + lane % 4), 4);
    }
    if constexpr (BYTES == 4) {
#pragma unroll
        for (int q = 0; q < 4; ++q) r[q] = round_to_tf32(r[q]);
    }
}
"""
