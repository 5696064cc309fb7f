"""Matrix products on Hopper: TMA fills tiles in shared memory, warpgroups multiply them with wgmma.

One warpgroup of a block is the producer: one of its threads starts the copies. The others, one for each 64
rows of the tile, are consumers: they multiply while later tiles are copied, and run the epilogue. Two
barriers for each buffer say when it is full and when it is empty again.

Both operands must be contiguous along k, with rows at multiples of 16 bytes: TMA and TF32 ask for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder, TensorMap
from kernelpro.authors.playbook.cuda.matmul import CudaMatmul, uses_tensor_cores
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.warpgroup_prelude import ROW_BYTES, SIZES
from kernelpro.authors.playbook.ir.expressions import Expr, itemsize
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, iterations
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep
from kernelpro.authors.playbook.schedule.contractions import Contraction
from kernelpro.authors.playbook.schedule.design import StageDesign

WGMMA_CAPABILITY = "9.0"
"""The compute capability that has these instructions; later ones have others."""
ROWS_PER_WARPGROUP = 64
_KINDS = {"float32": "tf32", "bfloat16": "bf16", "float16": "f16"}
_MAP_TYPES = {"float32": "TFLOAT32", "bfloat16": "BFLOAT16", "float16": "FLOAT16"}
_ALIGNMENT = 16
_SWIZZLE_BYTES = 1024
"""Alignment of a tile with the 128-byte swizzle."""
_BARRIER_BYTES = 16
"""Of the two barriers of a buffer."""


@dataclass(frozen=True)
class _Matrices:
    """An operand in memory: `count` matrices of `rows` rows, contiguous along k. Strides in elements."""

    tensor: str
    offset: int
    rows: int
    depth: int
    count: int
    row_stride: int
    stride: int


def fits_warpgroups(contraction: Contraction, design: StageDesign, precision: str) -> bool:
    """Whether the product can be written so."""
    return (
        uses_tensor_cores(contraction, design, precision)
        and _matrices(contraction, contraction.left, contraction.rows) is not None
        and _matrices(contraction, contraction.right, contraction.columns) is not None
    )


def fit_warpgroup_tiles(contraction: Contraction, design: StageDesign, max_shared_bytes: int) -> StageDesign:
    """The design with the tiles that the instructions allow and that are no larger than the product, and with
    as many pipeline stages as shared memory holds."""
    rows, columns = iterations(contraction.rows), iterations(contraction.columns)
    tile_m = 2 * ROWS_PER_WARPGROUP if design.tile_m > ROWS_PER_WARPGROUP < rows else ROWS_PER_WARPGROUP
    tile_n = max(size for size in SIZES if size == SIZES[0] or (size <= design.tile_n and size < 2 * columns))
    stage_bytes = ROW_BYTES * (tile_m + tile_n) + _BARRIER_BYTES
    stages = min(max(design.pipeline_stages, 2), (max_shared_bytes - _SWIZZLE_BYTES) // stage_bytes)
    return replace(
        design,
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=ROW_BYTES // itemsize(contraction.left.dtype),
        pipeline_stages=stages,
        split=1,
    )


def _matrices(contraction: Contraction, value: Expr, sides: Loops) -> _Matrices | None:
    """The operand as TMA sees it; None if it has another layout."""
    if contraction.guards or contraction.right_guards or len(contraction.depth) != 1:
        return None
    if value.op != "load" or value.operands:
        return None
    tensor, index = value.data
    size, depth = itemsize(value.dtype), contraction.depth[0]
    rows, batch = _stride(index, sides), _stride(index, contraction.batch)
    if not index.is_affine or index.coefficient(depth) != 1 or rows is None or batch is None:
        return None
    if rows <= 0 or batch < 0 or any(size * step % _ALIGNMENT for step in (rows, batch, index.constant)):
        return None
    count = iterations(contraction.batch) if batch else 1
    height = iterations(sides)
    return _Matrices(tensor, index.constant, height, depth.extent, count, rows, batch or rows * height)


def _stride(index: IndexExpr, loops: Loops) -> int | None:
    """The distance between iterations of the loops, seen as one; None if it varies."""
    step = index.coefficient(loops[-1]) if loops else 0
    expected = step
    for loop in reversed(loops):
        if index.coefficient(loop) != expected:
            return None
        expected *= loop.extent
    return step


class WarpgroupMatmul(CudaMatmul):
    """The kernel of one matrix product with TMA and wgmma."""

    def __init__(
        self, builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int, precision: str
    ):
        super().__init__(builder, stage, design, number, precision)
        contraction = self._contraction
        left = _matrices(contraction, contraction.left, contraction.rows)
        right = _matrices(contraction, contraction.right, contraction.columns)
        if not self._tensor_cores or left is None or right is None:
            raise NoProposal("wgmma needs operands on tensor cores that are contiguous along the sum")
        self._operands = {"left": left, "right": right}
        self._design, self._split = fit_warpgroup_tiles(contraction, design, stage.max_shared_bytes), 1

    def _write(self, steps: list[StoreStep], names: Mapping[Expr, str]) -> None:
        builder, number, design = self._builder, self._number, self._design
        builder.begin_kernel()
        builder.tunable(f"TILE_M{number}", design.tile_m, ROWS_PER_WARPGROUP, design.tile_m)
        widest = max(size for size in SIZES if size == SIZES[0] or size < 2 * self._columns)
        builder.tunable(f"TILE_N{number}", design.tile_n, SIZES[0], widest)
        stages = design.pipeline_stages
        builder.tunables[f"PIPELINE_STAGES{number}"] = (stages, sorted({3, 4, 6, stages}))
        stage_bytes = f"({ROW_BYTES} * (TILE_M{number} + TILE_N{number}) + {_BARRIER_BYTES})"
        shared_bytes = f"{_SWIZZLE_BYTES} + PIPELINE_STAGES{number} * {stage_bytes}"
        builder.constraints.append(f"{shared_bytes} <= {self._stage.max_shared_bytes}")
        constants = [f"{name} = {name}{number}" for name in ("TILE_M", "TILE_N", "PIPELINE_STAGES")]
        constants += [f"TILE_K = {design.tile_k}", "CONSUMERS = 2 * TILE_M"]
        body = [*self._tile_position(", ".join(constants)), *self._declare_buffers()]
        body += [*self._produce(), *self._main_loop(), *self._epilogue(steps, dict(names))]
        maps = [self._map(name, side) for name, side in (("left", "TILE_M"), ("right", "TILE_N"))]
        threads = f"2 * TILE_M{number} + 128"
        builder.add_kernel(f"product{number}", body, self._grid(), threads, shared_bytes, maps)

    def _map(self, name: str, side: str) -> TensorMap:
        operand, dtype = self._operands[name], self._contraction.left.dtype
        size = itemsize(dtype)
        self._builder.vectorized.add(operand.tensor)
        matrices = [f"{self._builder.pointer(operand.tensor)} + {operand.offset}"]
        matrices += [str(number) for number in (operand.depth, operand.rows, operand.count)]
        matrices += [f"{size * operand.row_stride}ull", f"{size * operand.stride}ull"]
        arguments = [f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[dtype]}", f"{{{', '.join(matrices)}}}"]
        arguments += [f"{side}{self._number}", str(size)]
        return TensorMap(f"{name}_map{self._number}", operand.tensor, ", ".join(arguments))

    def _declare_buffers(self) -> list[str]:
        return [
            "extern __shared__ uint4 shared_memory[];",
            f"char* const left_tiles = (char*)((size_t(shared_memory) + {_SWIZZLE_BYTES - 1})"
            f" / {_SWIZZLE_BYTES} * {_SWIZZLE_BYTES});",
            f"char* const right_tiles = left_tiles + PIPELINE_STAGES * TILE_M * {ROW_BYTES};",
            f"Barrier* const full = (Barrier*)(right_tiles + PIPELINE_STAGES * TILE_N * {ROW_BYTES});",
            "Barrier* const empty = full + PIPELINE_STAGES;",
            "if (threadIdx.x == 0) {",
            "    for (int slot = 0; slot < PIPELINE_STAGES; ++slot) {",
            "        barrier_init(full + slot, 1);",
            "        barrier_init(empty + slot, CONSUMERS / 32);",
            "    }",
            "    barriers_ready();",
            "}",
            "__syncthreads();",
        ]

    def _produce(self) -> list[str]:
        left, right = (
            f"copy_tile({name}_tiles + slot * {side} * {ROW_BYTES}, &{name}_map{self._number}, "
            f"k_tile * TILE_K, {first}, {'batch' if self._operands[name].count > 1 else '0'}, full + slot);"
            for name, side, first in (
                ("left", "TILE_M", "first_row"),
                ("right", "TILE_N", "first_column"),
            )
        )
        return [
            "if (threadIdx.x >= CONSUMERS) {",
            "    if constexpr (CONSUMERS == 256) release_registers<40>();",
            "    if (threadIdx.x == CONSUMERS) {",
            "        for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {",
            "            const int slot = k_tile % PIPELINE_STAGES;",
            "            barrier_wait(empty + slot, k_tile / PIPELINE_STAGES % 2 ^ 1);",
            f"            barrier_expect(full + slot, (TILE_M + TILE_N) * {ROW_BYTES});",
            f"            {left}",
            f"            {right}",
            "        }",
            "    }",
            "    return;",
            "}",
            "if constexpr (CONSUMERS == 256) request_registers<232>();",
        ]

    def _main_loop(self) -> list[str]:
        wgmma = f"wgmma_{_KINDS[self._contraction.left.dtype]}"
        rows = ROWS_PER_WARPGROUP
        body = [
            "const int slot = k_tile % PIPELINE_STAGES;",
            "barrier_wait(full + slot, k_tile / PIPELINE_STAGES % 2);",
            f"const uint64_t left = tile_descriptor(left_tiles + "
            f"(slot * TILE_M + warpgroup * {rows}) * {ROW_BYTES});",
            f"const uint64_t right = tile_descriptor(right_tiles + slot * TILE_N * {ROW_BYTES});",
            "wgmma_fence();",
            "#pragma unroll",
            f"for (int k = 0; k < {ROW_BYTES // 32}; ++k) {wgmma}(acc[0], left + 2 * k, right + 2 * k);",
            "wgmma_commit();",
            "wgmma_wait<1>();  // the previous tile is done: the producer may fill its buffer again",
            "if (k_tile > 0 && lane == 0) barrier_arrive(empty + (k_tile - 1) % PIPELINE_STAGES);",
        ]
        return [
            "const int lane = threadIdx.x % 32, warpgroup = threadIdx.x / 128;",
            f"const int tile_row = warpgroup * {rows} + threadIdx.x / 32 % 4 * 16, tile_column = 0;",
            "constexpr int FRAGMENTS_M = 1, FRAGMENTS_N = TILE_N / 8;",
            "float acc[FRAGMENTS_M][FRAGMENTS_N][4] = {};",
            "#pragma unroll 1",
            "for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {",
            *indented(body),
            "}",
            "wgmma_wait<0>();",
        ]
