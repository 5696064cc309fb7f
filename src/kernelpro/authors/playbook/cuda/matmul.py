"""Matrix products in CUDA: tiles of the operands in shared memory, results in registers.

- Tiles along k rotate through `pipeline_stages` buffers: while one is multiplied, later ones are loaded.
- Operands that are in global memory in the right type and layout are copied asynchronously. Others go through
  registers.
- Tensor cores multiply 16-bit types, and float32 as TF32 if the design allows it. Otherwise fused
  multiply-adds compute in the operands' type.
- Steps that need only one element of the product at a time follow in the same kernel (epilogue). With other
  steps, and with split-K, the product goes through global memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.matmul_operands import MatmulOperand
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, itemsize
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    LoopVar,
    flat_index,
    iterations,
    unflatten_loops,
    variable,
)
from kernelpro.authors.playbook.ir.stages import Guard, Stage, StoreStep
from kernelpro.authors.playbook.schedule.contractions import (
    Contraction,
    find_contraction,
    name_product_elements,
    replace_product_with_loads,
)
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.schedule.passes import RowPass

_MMA_TYPES = {"float32": "TF32", "bfloat16": "BF16", "float16": "F16"}
_MIN_TILE = 32
"""The smallest side of a tile."""
EPILOGUE_UNROLL = 4
"""Packs of the result whose epilogue loads are issued together."""


def uses_tensor_cores(contraction: Contraction, design: StageDesign, precision: str) -> bool:
    """Whether the design uses tensor cores, and type and precision allow them."""
    dtype = contraction.left.dtype
    return design.order == "tiles" and dtype in _MMA_TYPES and (dtype != "float32" or precision == "tf32")


def fit_tiles(contraction: Contraction, design: StageDesign, max_shared_bytes: int) -> StageDesign:
    """The design with tiles that are no larger than the product, threads that suit the tiles, and as many
    pipeline stages as shared memory holds."""
    tile_m = max(min(design.tile_m, power_of_two(iterations(contraction.rows))), _MIN_TILE)
    tile_n = max(min(design.tile_n, power_of_two(iterations(contraction.columns))), _MIN_TILE)
    tile_k = max(min(design.tile_k, power_of_two(iterations(contraction.depth))), 16)
    results = tile_m * tile_n
    threads = min(max(design.threads, results // 128, 64), results // 16, 8 * min(tile_m, tile_n), 512)
    stage_bytes = (tile_m + tile_n + 16) * (tile_k + 8) * itemsize(contraction.left.dtype)
    stages = max(min(design.pipeline_stages, max_shared_bytes // stage_bytes), 2)
    return replace(
        design, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, threads=threads, pipeline_stages=stages
    )


class CudaMatmul:
    """The kernel of one matrix product. Steps that need only one element of it at a time form the
    epilogue."""

    _constants_of_results: frozenset[LoopVar] = frozenset()
    """Variables in the indices of results that are constants in unrolled loops."""

    def __init__(
        self, builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int, precision: str
    ):
        match = find_contraction(stage)
        assert match, "the caller checks that the stage is a contraction"
        if match.left.dtype not in FLOATING or match.left.dtype != match.right.dtype:
            raise NoProposal(
                f"the playbook has no CUDA matrix product of {match.left.dtype} and {match.right.dtype}"
            )
        self._builder, self._stage, self._number, self._contraction = builder, stage, number, match
        builder.load_conditions = masked_loads(stage.expressions)
        self._design = fit_tiles(match, design, stage.max_shared_bytes)
        self._tensor_cores = uses_tensor_cores(match, design, precision)
        self._split = design.split if stage.product else 1
        self._rows, self._columns = iterations(match.rows), iterations(match.columns)
        self._depth = iterations(match.depth)
        self._batch = LoopVar("batch", iterations(match.batch))
        self._row = LoopVar("row", self._rows)
        shared = (match.depth, unflatten_loops(match.batch, variable(self._batch)), self._tensor_cores)
        self._left = MatmulOperand(
            builder, "left", match.left, "TILE_M", "first_row", match.rows, *shared, match.guards
        )
        self._right = MatmulOperand(
            builder,
            "right",
            match.right,
            "TILE_N",
            "first_column",
            match.columns,
            *shared,
            match.right_guards,
        )

    def write(self) -> Stage | None:
        """Add the kernel. If the stage's steps do not fit into the epilogue, returns them as a stage."""
        column = variable(LoopVar("column", self._columns))
        names, fused = name_product_elements(self._stage, column, self._element)
        if fused and self._split == 1:
            self._write(list(self._stage.stores), names)
            return None
        product = self._stage.product
        assert product
        count = self._stage.rows * self._columns
        tensor = self._builder.add_temporary(
            f"{product.name}_result", self._split * count, product.left.dtype
        )
        column = variable(product.column)
        value = Expr("product", (), self._builder.tensors[tensor].dtype, (product.name, column), 0)
        index = variable(LoopVar("part", self._split)) * count
        index += flat_index(self._stage.outer) * self._columns + column
        self._write([StoreStep(tensor, index, value, (product.column,))], {value: self._element})
        return replace_product_with_loads(self._stage, tensor, self._split)

    # --- the kernel -------------------------------------------------------------------------------

    def _write(self, steps: list[StoreStep], names: Mapping[Expr, str]) -> None:
        builder, number, design = self._builder, self._number, self._design
        builder.begin_kernel()
        max_k = 64 if itemsize(self._contraction.left.dtype) > 2 else 128
        for name, size, minimum, maximum, extent in (
            ("TILE_M", design.tile_m, _MIN_TILE, 256, self._rows),
            ("TILE_N", design.tile_n, _MIN_TILE, 256, self._columns),
            ("TILE_K", design.tile_k, 16, max_k, self._depth),
        ):
            builder.tunable(
                f"{name}{number}", size, minimum, max(min(maximum, power_of_two(extent)), minimum)
            )
        stages = design.pipeline_stages
        builder.tunables[f"PIPELINE_STAGES{number}"] = (stages, sorted({2, 3, 4, stages}))
        threads = builder.tunable(f"THREADS{number}", design.threads, 64, 512)
        shared_bytes = self._shared_bytes()
        results = f"TILE_M{number} * TILE_N{number}"
        builder.constraints += [
            f"{shared_bytes} <= {self._stage.max_shared_bytes}",
            f"16 * {threads} <= {results} and {results} <= 128 * {threads}",
            f"{threads} <= 512 and {threads} <= 8 * TILE_M{number} and {threads} <= 8 * TILE_N{number}",
        ]
        names_of_tunables = ("TILE_M", "TILE_N", "TILE_K", "PIPELINE_STAGES", "THREADS")
        constants = ", ".join(f"{name} = {name}{number}" for name in names_of_tunables)
        body = [*self._tile_position(constants), *self._left.header(), *self._right.header()]
        body += [*self._declare_buffers(), *self._main_loop(), *self._epilogue(steps, dict(names))]
        builder.add_kernel(f"product{number}", body, self._grid(), threads, shared_bytes)

    def _grid(self) -> str:
        """The number of thread blocks: one for each tile of the result, and for each part of its sum."""
        number = self._number
        tiles = [f"(({self._rows} + TILE_M{number} - 1) / TILE_M{number})"]
        tiles += [f"(({self._columns} + TILE_N{number} - 1) / TILE_N{number})"]
        return " * ".join([*tiles, str(self._batch.extent), str(self._split)])

    def _shared_bytes(self) -> str:
        number, dtype = self._number, self._contraction.left.dtype
        size = itemsize("float32" if self._left.element_type == "float" else dtype)
        tiles = [
            operand.tile_elements(f"{operand.tile_side}{number}", f"TILE_K{number}")
            for operand in (self._left, self._right)
        ]
        return f"PIPELINE_STAGES{number} * {size} * ({' + '.join(tiles)})"

    def _tile_position(self, constants: str) -> list[str]:
        """The position of the block's tile. Concurrent blocks take tiles that share rows and columns, so that
        these stay in the L2 cache.

        `constants` defines TILE_M, TILE_N, TILE_K and PIPELINE_STAGES.
        """
        split = self._split
        return [
            f"constexpr int {constants}, GROUP = 8;",
            f"constexpr int TILES_M = ({self._rows} + TILE_M - 1) / TILE_M;",
            f"constexpr int TILES_N = ({self._columns} + TILE_N - 1) / TILE_N;",
            f"constexpr int TILES_K = ({self._depth} + TILE_K - 1) / TILE_K;",
            f"constexpr int TILES_PER_PART = (TILES_K + {split} - 1) / {split};",
            f"[[maybe_unused]] const int part = blockIdx.x % {split};",
            f"int tile = blockIdx.x / {split};",
            "[[maybe_unused]] const Int batch = tile / (TILES_M * TILES_N);",
            "tile %= TILES_M * TILES_N;",
            "const int group = tile / (GROUP * TILES_N) * GROUP;",
            "const int group_rows = minimum(TILES_M - group, int(GROUP));",
            "const Int first_row = Int(group + tile % (GROUP * TILES_N) % group_rows) * TILE_M;",
            "const Int first_column = Int(tile % (GROUP * TILES_N) / group_rows) * TILE_N;",
            "const int first_k_tile = part * TILES_PER_PART;",
            "const int k_tiles = minimum(int(TILES_PER_PART), TILES_K - first_k_tile);",
        ]

    def _declare_buffers(self) -> list[str]:
        lines = [
            "extern __shared__ uint4 shared_memory[];",
            "LeftTile::T* const left_tiles = (LeftTile::T*)shared_memory;",
            "RightTile::T* const right_tiles ="
            " (RightTile::T*)(left_tiles + PIPELINE_STAGES * LeftTile::SIZE);",
        ]
        if self._tensor_cores:
            return [
                *lines,
                "constexpr int WARPS = THREADS / 32, WARPS_N = WARPS >= 8 && TILE_M <= TILE_N ? 4 : 2;",
                "constexpr int FRAGMENTS_M = TILE_M / (WARPS / WARPS_N) / 16;",
                "constexpr int FRAGMENTS_N = TILE_N / WARPS_N / 8;",
                "constexpr int FRAGMENT_K = 32 / sizeof(LeftTile::T);",
                "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
                "const int tile_row = warp / WARPS_N * FRAGMENTS_M * 16;",
                "const int tile_column = warp % WARPS_N * FRAGMENTS_N * 8;",
                "float acc[FRAGMENTS_M][FRAGMENTS_N][4] = {};",
            ]
        return [
            *lines,
            "constexpr int RESULTS = TILE_M * TILE_N / THREADS;",
            "constexpr int COLUMNS = RESULTS >= 64 ? 8 : 4, ROWS = RESULTS / COLUMNS;",
            "constexpr int THREADS_N = TILE_N / COLUMNS;",
            "const int tile_row = threadIdx.x / THREADS_N * ROWS, tile_column = threadIdx.x % THREADS_N * 4;",
            "LeftTile::T acc[ROWS][COLUMNS] = {};",
        ]

    def _main_loop(self) -> list[str]:
        operands = (self._left, self._right)
        commit = ["async_commit();"] if any(operand.async_copied for operand in operands) else []
        wait = ["async_wait<PIPELINE_STAGES - 2>();"] if commit else []
        load = [line for operand in operands for line in operand.load_tile()]
        store = [line for operand in operands for line in operand.store_tile()]
        lines = [
            "const auto load_tiles = [&](int k_tile, [[maybe_unused]] int slot) {",
            *indented(["const Int first_k = Int(first_k_tile + k_tile) * TILE_K;", *load]),
            "};",
        ]
        lines += ["const auto store_tiles = [&](int slot) {", *indented(store), "};"] if store else []
        prologue = ["load_tiles(k_tile, k_tile);", *(["store_tiles(k_tile);"] if store else [])]
        lines += [
            "for (int k_tile = 0; k_tile < PIPELINE_STAGES - 1; ++k_tile) {",
            *indented(["if (k_tile < k_tiles) {", *indented(prologue), "}", *commit]),
            "}",
        ]
        body = [
            *wait,
            "__syncthreads();",
            "const int next = k_tile + PIPELINE_STAGES - 1;",
            "if (next < k_tiles) load_tiles(next, next % PIPELINE_STAGES);",
            *commit,
            "const LeftTile::T* const left = left_tiles + k_tile % PIPELINE_STAGES * LeftTile::SIZE;",
            "const RightTile::T* const right = right_tiles + k_tile % PIPELINE_STAGES * RightTile::SIZE;",
            *self._multiply(),
            *(["if (next < k_tiles) store_tiles(next % PIPELINE_STAGES);"] if store else []),
        ]
        loop = "for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {"
        return [*lines, "#pragma unroll 1", loop, *indented(body), "}"]

    def _multiply(self) -> list[str]:
        if self._tensor_cores:
            mma = f"mma<{_MMA_TYPES[self._contraction.left.dtype]}>"
            return [
                "#pragma unroll",
                "for (int k = 0; k < TILE_K; k += FRAGMENT_K) {",
                "    unsigned a[FRAGMENTS_M][4], b[FRAGMENTS_N / 2][4];",
                "#pragma unroll",
                "    for (int i = 0; i < FRAGMENTS_M; ++i)",
                "        load_fragment<LeftTile>(a[i], left, tile_row + 16 * i, k);",
                "#pragma unroll",
                "    for (int i = 0; i < FRAGMENTS_N / 2; ++i)",
                "        load_fragment<RightTile>(b[i], right, tile_column + 16 * i, k);",
                "#pragma unroll",
                "    for (int i = 0; i < FRAGMENTS_M; ++i) {",
                "#pragma unroll",
                "        for (int n = 0; n < FRAGMENTS_N; ++n)",
                f"            {mma}(acc[i][n], a[i], b[n / 2][n % 2], b[n / 2][n % 2 + 2]);",
                "    }",
                "}",
            ]
        return [
            "#pragma unroll 8",
            "for (int k = 0; k < TILE_K; ++k) {",
            "    LeftTile::T a[ROWS], b[COLUMNS / 4][4];",
            "    load_shared(a, left + LeftTile::offset(tile_row, k));",
            "#pragma unroll",
            "    for (int n = 0; n < COLUMNS / 4; ++n)",
            "        load_shared(b[n], right + RightTile::offset(tile_column + n * THREADS_N * 4, k));",
            "#pragma unroll",
            "    for (int i = 0; i < ROWS; ++i) {",
            "#pragma unroll",
            "        for (int n = 0; n < COLUMNS; ++n) acc[i][n] += a[i] * b[n / 4][n % 4];",
            "    }",
            "}",
        ]

    # --- epilogue ---------------------------------------------------------------------------------

    @property
    def _element(self) -> str:
        return "acc[i / 2][n / 2][i % 2 * 2 + n % 2 + j]" if self._tensor_cores else "acc[i][n + j]"

    def _epilogue(self, steps: list[StoreStep], names: dict[Expr, str]) -> list[str]:
        """The steps for a thread's results, in packs. `i` is the row and `n` the column among these
        results."""
        contraction, columns = self._contraction, self._columns
        vector = next(v for v in (4, 2, 1) if v <= (2 if self._tensor_cores else 4) and columns % v == 0)
        guards = dict.fromkeys(guard for step in steps for guard in step.guards)
        if any(guard.index.variables & set(contraction.columns) for guard in guards):
            vector = 1
        column = variable(LoopVar("column", columns // vector)) * vector + variable(LoopVar("j", vector))
        loop_indices = {
            **unflatten_loops(contraction.batch, variable(self._batch)),
            **self._row_indices(),
            **unflatten_loops(contraction.columns, column),
        }
        for step in steps:
            loop_indices |= unflatten_loops(step.loops, column) if step.loops else {}
        if self._tensor_cores:
            height, width = "2 * FRAGMENTS_M", "2 * FRAGMENTS_N"
            row_offset = "i / 2 * 16 + i % 2 * 8 + lane / 4"
            column_offset = "n / 2 * 8 + lane % 4 * 2 + n % 2"
        else:
            height, width = "ROWS", "COLUMNS"
            row_offset, column_offset = "i", "n / 4 * THREADS_N * 4 + n % 4"
        packs = f"({width} / {vector})"
        always, in_bounds = self._rows_in_bounds()
        step_loops = dict.fromkeys(var for step in steps for var in step.loops)
        loop = ThreadLoop(
            self._builder,
            RowPass((*step_loops, *contraction.rows, *contraction.columns), list(steps)),
            vector,
            loop_indices,
            always_in_bounds=f"({always} && {columns} % TILE_N == 0)",
            in_bounds=f"{in_bounds} && column < {columns // vector}",
            index_lines=[
                f"const int i = (c + u) / {packs}, n = (c + u) % {packs} * {vector};",
                *self._row_lines(row_offset),
                f"[[maybe_unused]] const Int column = "
                f"(first_column + tile_column + {column_offset}) / {vector};",
            ],
            iterations="ITERATIONS",
            unroll=str(EPILOGUE_UNROLL),
            constants=self._constants_of_results,
        )
        body = self._epilogue_loop(loop, list(guards), names)
        return [f"constexpr int ITERATIONS = {height} * {width} / {vector};", "#pragma unroll", *body]

    def _epilogue_loop(self, loop: ThreadLoop, guards: list[Guard], names: dict[Expr, str]) -> list[str]:
        """The loop over the results that pass the guards."""
        loop.bind_printer()
        if guards:
            loop.always_in_bounds = "false"
            loop.in_bounds = " && ".join([loop.in_bounds, *map(loop.guard_condition, guards)])
        loads = loop.emit_loads(names)
        return loop.outer_loop([*loads, *loop.unrolled(loop.emit_pack(names))])

    def _row_indices(self) -> dict[LoopVar, IndexExpr]:
        """The loops over the rows as functions of what `_row_lines` declares."""
        return unflatten_loops(self._contraction.rows, variable(self._row))

    def _row_lines(self, offset: str) -> list[str]:
        """Lines that declare the row of a result, which lies `offset` rows behind the thread's first one."""
        return [f"[[maybe_unused]] const Int row = first_row + tile_row + {offset};"]

    def _rows_in_bounds(self) -> tuple[str, str]:
        """A compile-time condition that all rows of all tiles exist, and the condition that `row` does."""
        return f"{self._rows} % TILE_M == 0", f"row < {self._rows}"
