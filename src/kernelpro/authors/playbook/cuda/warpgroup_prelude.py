"""Device functions of products on Hopper: TMA, barriers in shared memory, and warpgroup matrix instructions.

A tile in shared memory has rows of ROW_BYTES, with the 128-byte swizzle that TMA writes and wgmma reads.
"""

from __future__ import annotations

ROW_BYTES = 128
"""Bytes of a tile's row: terms of the sum that are loaded at once."""
SIZES = (64, 128, 256)
"""Columns that one instruction can multiply; the hardware also has the other multiples of 8."""

COPIES = """\
#include <cuda.h>
using Barrier = uint64_t;  // in shared memory
__device__ inline unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes new barriers visible to other threads and to TMA.
__device__ inline void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;\\n\\tfence.proxy.async;" ::: "memory");
}
__device__ inline void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase last until so many bytes have been copied.
__device__ inline void barrier_expect(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits for the end of the phase with this parity.
__device__ inline void barrier_wait(Barrier* barrier, int parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    } while (!done);
}
// TMA: copies the box at these coordinates to shared memory; zeros where out of bounds.
__device__ inline void copy_tile(void* target, const CUtensorMap* map, int k, int row, int batch,
                                 Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(shared_address(target)), "l"(map), "r"(k), "r"(row), "r"(batch),
                 "r"(shared_address(barrier)) : "memory");
}
// The descriptor of a tile for wgmma: groups of eight rows are 1024 bytes apart.
__device__ inline uint64_t tile_descriptor(const void* tile) {
    return uint64_t(shared_address(tile) & 0x3FFFF) >> 4 | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 |
           uint64_t(1) << 62;
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ inline void wgmma_wait() {  // for all groups but the last PENDING
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int COUNT> __device__ inline void release_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void request_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// How TMA finds a matrix: rows of `depth` elements, several matrices one after the other.
struct Matrices {
    const void* data;
    cuuint64_t depth, rows, count, row_bytes, matrix_bytes;
};
// A box is `rows` rows of 128 bytes. float32 is rounded to TF32 on the way.
inline int encode_map(CUtensorMap* map, CUtensorMapDataType type, const Matrices& m, int rows,
                      int element_bytes) {
    static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    if (!encode) {
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, cudaEnableDefault,
                                         &result);
        if (!encode) return cudaErrorNotSupported;
    }
    const cuuint64_t sizes[3] = {m.depth, m.rows, m.count}, strides[2] = {m.row_bytes, m.matrix_bytes};
    const cuuint32_t box[3] = {cuuint32_t(128 / element_bytes), cuuint32_t(rows), 1}, steps[3] = {1, 1, 1};
    return encode(map, type, 3, (void*)m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) ? cudaErrorInvalidValue : cudaSuccess;
}
"""


def _instruction(kind: str, size: int) -> str:
    registers = size // 2
    results = ", ".join(f"%{i}" for i in range(registers))
    operands = ", ".join(f'"+f"(d[{i // 4}][{i % 4}])' for i in range(registers))
    depth, flags = (8, "1, 1, 1") if kind == "tf32" else (16, "1, 1, 1, 0, 0")
    return f"""\
__device__ inline void wgmma_{kind}(float (&d)[{size // 8}][4], uint64_t a, uint64_t b) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{size}k{depth}.f32.{kind}.{kind} "
                 "{{{results}}}, %{registers}, %{registers + 1}, {flags};"
                 : {operands} : "l"(a), "l"(b));
}}
"""


INSTRUCTIONS_OF = {
    kind: "// d += a * b for a warpgroup: 64 rows by 8 columns for each of d's rows, by 32 bytes along k.\n"
    + "".join(_instruction(kind, size) for size in SIZES)
    for kind in ("tf32", "bf16", "f16")
}
"""The instruction for each type of operands."""
