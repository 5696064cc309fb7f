"""Products in CUDA: tiles of both operands in shared memory, a tile of results in the registers of each thread or warp.

Tiles along the depth go round in `stages` buffers: while one is multiplied, later ones are on the way. What memory holds
as it is needed is copied without registers in between; what has to be computed or turned first goes through them. Results
are multiplied by fused multiply-add in the operands' own type, or by tensor cores (16-bit types, and float32 as TF32 where
the design allows it). The steps that need one element of the product at a time follow in the same kernel; for others, and
where several blocks share the depth, the product goes through memory.
"""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cuda.matmul_operands import MatmulOperand
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, CudaSourceBuilder
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import Contraction, name_product_elements, find_contraction, replace_product_with_loads
from kernelpro.authors.playbook.schedule.masked_loads import masked_loads
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import FLOATING, Expr, itemsize
from kernelpro.authors.playbook.ir.indices import (LoopVar, flatten, iterations, unflatten_loops, variable)
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep

MAX_SHARED_BYTES = 232448
"""Bytes of shared memory that a block can have on the GPUs that have most of it."""
_MMA_TYPES = {"float32": "TF32", "bfloat16": "BF16", "float16": "F16"}
_MIN_TILE = 32
"""The least side of a tile."""
_EPILOGUE_UNROLL = 4
"""Pieces of the result whose other operands are on the way together."""


def is_matmul(stage: Stage, how: StageDesign) -> bool:
    """Whether the stage is written as a product."""
    return stage.product is not None or (how.order == "tiles" and find_contraction(stage) is not None)


def uses_tensor_cores(contraction_: Contraction, how: StageDesign, precision: str) -> bool:
    """Where types and precision allow it, and the design wants it."""
    return (
        how.order == "tiles"
        and contraction_.left.dtype in _MMA_TYPES
        and (contraction_.left.dtype != "float32" or precision == "tf32")
    )


def fit_tiles(of: Contraction, how: StageDesign) -> StageDesign:
    """With tiles no larger than the product, and as many threads as these can employ."""
    down = max(min(how.tile_m, power_of_two(iterations(of.rows))), _MIN_TILE)
    over = max(min(how.tile_n, power_of_two(iterations(of.columns))), _MIN_TILE)
    deep = max(min(how.tile_k, power_of_two(iterations(of.depth))), 16)
    threads = min(max(how.threads, down * over // 128, 64), down * over // 16, 8 * min(down, over), 512)
    stages = max(min(how.pipeline_stages, MAX_SHARED_BYTES // ((down + over + 16) * (deep + 8) * itemsize(of.left.dtype))), 2)
    return replace(how, tile_m=down, tile_n=over, tile_k=deep, threads=threads, pipeline_stages=stages)


class CudaMatmul:
    """One product, and in the same kernel the steps that need one of its elements at a time."""

    def __init__(self, writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int, design: Design):
        found = find_contraction(stage)
        assert found, "the caller has looked"
        if found.left.dtype not in FLOATING or found.left.dtype != found.right.dtype:
            raise NoProposal(
                f"products of {found.left.dtype} and {found.right.dtype}: the playbook has none for CUDA"
            )
        self._builder, self._stage, self._number, self._contraction = writing, stage, place, found
        writing.load_conditions = masked_loads(stage.expressions)
        self._design = fit_tiles(found, how)
        self._tensor_cores = uses_tensor_cores(found, how, design.precision)
        self._split = how.split if stage.product else 1
        self._batch, self._row = LoopVar("batch", iterations(found.batch)), LoopVar("row", iterations(found.rows))
        batch = unflatten_loops(found.batch, variable(self._batch))
        shared = (found.depth, batch, self._tensor_cores)
        self._left = MatmulOperand(
            writing, "left", found.left, "TILE_M", "first_row", found.rows, *shared, found.guards
        )
        self._right = MatmulOperand(writing, "right", found.right, "TILE_N", "first_column", found.columns, *shared)

    def write(self) -> Stage | None:
        """Adds the kernel; what is left of the stage where its steps need more than one element at a time."""
        columns = iterations(self._contraction.columns)
        names, fused = name_product_elements(self._stage, variable(LoopVar("column", columns)), self._element)
        if fused and self._split == 1:
            self._write([step for step in self._stage.steps if isinstance(step, StoreStep)], names)
            return None
        product = self._stage.product
        assert product
        count = self._stage.rows * columns
        made = self._builder.add_temporary(f"made_{product.name}", self._split * count, product.left.dtype)
        value = Expr(
            "product", (), self._builder.tensors[made].dtype, (product.name, variable(product.column)), 0
        )
        outer = flatten(
            [variable(var) for var in self._stage.outer], [var.extent for var in self._stage.outer]
        )
        index = variable(LoopVar("share", self._split)) * count + outer * columns + variable(product.column)
        self._write([StoreStep(made, index, value, (product.column,))], {value: self._element})
        return replace_product_with_loads(self._stage, made, self._split)

    # --- the kernel --------------------------------------------------------------------------------------------

    def _write(self, steps: list[StoreStep], names: Names) -> None:
        writing, place, how = self._builder, self._number, self._design
        writing.begin_kernel()
        deepest = 64 if itemsize(self._contraction.left.dtype) > 2 else 128
        writing.tunable(
            f"TILE_M{place}", how.tile_m, _MIN_TILE, max(min(256, power_of_two(self._row.extent)), _MIN_TILE)
        )
        writing.tunable(
            f"TILE_N{place}",
            how.tile_n,
            _MIN_TILE,
            max(min(256, power_of_two(iterations(self._contraction.columns))), _MIN_TILE),
        )
        writing.tunable(
            f"TILE_K{place}", how.tile_k, 16, max(min(deepest, power_of_two(iterations(self._contraction.depth))), 16)
        )
        writing.tunables[f"PIPELINE_STAGES{place}"] = (how.pipeline_stages, sorted({2, 3, 4, how.pipeline_stages}))
        threads = writing.tunable(f"THREADS{place}", how.threads, 64, 512)
        shared = self._shared()
        tile = f"TILE_M{place} * TILE_N{place}"
        writing.constraints += [
            f"{shared} <= {MAX_SHARED_BYTES}",
            f"16 * THREADS{place} <= {tile} and {tile} <= 128 * THREADS{place}",
            f"THREADS{place} <= 512 and THREADS{place} <= 8 * TILE_M{place} and THREADS{place} <= 8 * TILE_N{place}",
        ]
        body = [*self._tile_position(), *self._left.header(), *self._right.header(), *self._declare_buffers()]
        body += [*self._main_loop(), *self._epilogue(steps, names)]
        tiles = [f"(({self._row.extent} + TILE_M{place} - 1) / TILE_M{place})"]
        tiles += [
            f"(({iterations(self._contraction.columns)} + TILE_N{place} - 1) / TILE_N{place})",
            str(self._batch.extent),
            str(self._split),
        ]
        writing.add_kernel(f"product{place}", body, " * ".join(tiles), threads, shared)

    def _shared(self) -> str:
        place, each = self._number, itemsize("float32" if self._left.element_type == "float" else self._contraction.left.dtype)
        sizes = [one.tile_elements(f"{one.tile_side}{place}", f"TILE_K{place}") for one in (self._left, self._right)]
        return f"PIPELINE_STAGES{place} * {each} * ({' + '.join(sizes)})"

    def _tile_position(self) -> list[str]:
        """Blocks that run at the same time take tiles that share rows and columns: they find them in the cache."""
        place, terms = self._number, iterations(self._contraction.depth)
        names = [f"{name} = {name}{place}" for name in ("TILE_M", "TILE_N", "TILE_K", "PIPELINE_STAGES", "THREADS")]
        lines = [
            f"constexpr int {', '.join(names)}, GROUP = 8;",
            f"constexpr int TILES_DOWN = ({self._row.extent} + TILE_M - 1) / TILE_M;",
            f"constexpr int TILES_OVER = ({iterations(self._contraction.columns)} + TILE_N - 1) / TILE_N;",
            f"constexpr int TILES_DEEP = ({terms} + TILE_K - 1) / TILE_K, PART = (TILES_DEEP + {self._split} - 1) / {self._split};",
            f"[[maybe_unused]] const int share = blockIdx.x % {self._split};",
            f"int number = blockIdx.x / {self._split};",
            "[[maybe_unused]] const Int batch = number / (TILES_DOWN * TILES_OVER);",
            "number %= TILES_DOWN * TILES_OVER;",
            "const int group = number / (GROUP * TILES_OVER) * GROUP, height = smaller(TILES_DOWN - group, int(GROUP));",
            "const Int first_row = Int(group + number % (GROUP * TILES_OVER) % height) * TILE_M;",
            "const Int first_column = Int(number % (GROUP * TILES_OVER) / height) * TILE_N;",
            "const int first_tile = share * PART, tiles = smaller(int(PART), TILES_DEEP - first_tile);",
        ]
        return lines

    def _declare_buffers(self) -> list[str]:
        lines = [
            "extern __shared__ uint4 memory[];",
            "Left::T* const lefts = (Left::T*)memory;",
            "Right::T* const rights = (Right::T*)(lefts + PIPELINE_STAGES * Left::SIZE);",
        ]
        if self._tensor_cores:
            return [
                *lines,
                "constexpr int WARPS = THREADS / 32, WARPS_OVER = WARPS >= 8 && TILE_M <= TILE_N ? 4 : 2;",
                "constexpr int HIGH = TILE_M / (WARPS / WARPS_OVER) / 16, WIDE = TILE_N / WARPS_OVER / 8;",
                "constexpr int TERMS = 32 / sizeof(Left::T);",
                "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
                "const int row_here = warp / WARPS_OVER * HIGH * 16, column_here = warp % WARPS_OVER * WIDE * 8;",
                "float acc[HIGH][WIDE][4] = {};",
            ]
        return [
            *lines,
            "constexpr int EACH = TILE_M * TILE_N / THREADS, WIDE = EACH >= 64 ? 8 : 4, HIGH = EACH / WIDE, ACROSS = TILE_N / WIDE;",
            "const int row_here = threadIdx.x / ACROSS * HIGH, column_here = threadIdx.x % ACROSS * 4;",
            "Left::T acc[HIGH][WIDE] = {};",
        ]

    def _main_loop(self) -> list[str]:
        operands = (self._left, self._right)
        copied, put = any(one.async_copied for one in operands), [line for one in operands for line in one.store_tile()]
        fetch = [
            "const Int start = Int(first_tile + tile) * TILE_K;",
            *(line for one in operands for line in one.load_tile()),
        ]
        lines = ["const auto fetch = [&](int tile, [[maybe_unused]] int slot) {", *indented(fetch), "};"]
        lines += ["const auto put = [&](int slot) {", *indented(put), "};"] if put else []
        first = ["if (tile < tiles) {", "    fetch(tile, tile);", *(["    put(tile);"] if put else []), "}"]
        close = ["commit();"] if copied else []
        lines += ["for (int tile = 0; tile < PIPELINE_STAGES - 1; ++tile) {", *indented([*first, *close]), "}"]
        body = [
            *(["arrived<PIPELINE_STAGES - 2>();"] if copied else []),
            "__syncthreads();",
            "const int next = tile + PIPELINE_STAGES - 1;",
        ]
        body += ["if (next < tiles) fetch(next, next % PIPELINE_STAGES);", *close]
        body += ["const Left::T* const left = lefts + tile % PIPELINE_STAGES * Left::SIZE;"]
        body += ["const Right::T* const right = rights + tile % PIPELINE_STAGES * Right::SIZE;", *self._multiply()]
        body += ["if (next < tiles) put(next % PIPELINE_STAGES);"] if put else []
        return [
            *lines,
            "#pragma unroll 1",
            "for (int tile = 0; tile < tiles; ++tile) {",
            *indented(body),
            "}",
        ]

    def _multiply(self) -> list[str]:
        if self._tensor_cores:
            kind = _MMA_TYPES[self._contraction.left.dtype]
            return [
                "#pragma unroll",
                "for (int k = 0; k < TILE_K; k += TERMS) {",
                "    unsigned a[HIGH][4], b[WIDE / 2][4];",
                "#pragma unroll",
                "    for (int i = 0; i < HIGH; ++i) fragment<Left>(a[i], left, row_here + 16 * i, k);",
                "#pragma unroll",
                "    for (int i = 0; i < WIDE / 2; ++i) fragment<Right>(b[i], right, column_here + 16 * i, k);",
                "#pragma unroll",
                "    for (int i = 0; i < HIGH; ++i) {",
                "#pragma unroll",
                f"        for (int n = 0; n < WIDE; ++n) multiply<{kind}>(acc[i][n], a[i], b[n / 2][n % 2], b[n / 2][n % 2 + 2]);",
                "    }",
                "}",
            ]
        return [
            "#pragma unroll 8",
            "for (int k = 0; k < TILE_K; ++k) {",
            "    Left::T a[HIGH], b[WIDE / 4][4];",
            "    take(a, left + Left::at(row_here, k));",
            "#pragma unroll",
            "    for (int n = 0; n < WIDE / 4; ++n) take(b[n], right + Right::at(column_here + n * ACROSS * 4, k));",
            "#pragma unroll",
            "    for (int i = 0; i < HIGH; ++i) {",
            "#pragma unroll",
            "        for (int n = 0; n < WIDE; ++n) acc[i][n] += a[i] * b[n / 4][n % 4];",
            "    }",
            "}",
        ]

    # --- what follows ------------------------------------------------------------------------------------------

    @property
    def _element(self) -> str:
        return "acc[i / 2][n / 2][i % 2 * 2 + n % 2 + j]" if self._tensor_cores else "acc[i][n + j]"

    def _epilogue(self, steps: list[StoreStep], names: Names) -> list[str]:
        """A thread's results piece by piece: `i` counts its rows, `n` its columns."""
        columns, most = iterations(self._contraction.columns), 2 if self._tensor_cores else 4
        vector = next(v for v in (4, 2, 1) if v <= most and columns % v == 0)
        column = variable(LoopVar("column", columns // vector)) * vector + variable(LoopVar("j", vector))
        loops = tuple(dict.fromkeys(var for step in steps for var in step.loops))
        places = {**unflatten_loops(self._contraction.batch, variable(self._batch)), **unflatten_loops(self._contraction.rows, variable(self._row))}
        places |= unflatten_loops(self._contraction.columns, column)
        for step in steps:
            places |= unflatten_loops(step.loops, column) if step.loops else {}
        lines, wide = ("2 * HIGH", "2 * WIDE") if self._tensor_cores else ("HIGH", "WIDE")
        row = "i / 2 * 16 + i % 2 * 8 + lane / 4" if self._tensor_cores else "i"
        over = "n / 2 * 8 + lane % 4 * 2 + n % 2" if self._tensor_cores else "n / 4 * ACROSS * 4 + n % 4"
        here = [
            f"const int i = (c + u) / ({wide} / {vector}), n = (c + u) % ({wide} / {vector}) * {vector};",
            f"[[maybe_unused]] const Int row = first_row + row_here + {row};",
            f"[[maybe_unused]] const Int column = (first_column + column_here + {over}) / {vector};",
        ]
        whole = f"({self._row.extent} % TILE_M == 0 && {columns} % TILE_N == 0)"
        inside = f"row < {self._row.extent} && column < {columns // vector}"
        one = RowPass((*loops, *self._contraction.rows, *self._contraction.columns), list(steps))
        turns = ThreadLoop(self._builder, one, vector, places, whole, inside, here, "COUNT", str(_EPILOGUE_UNROLL))
        body = [*turns.emit_loads(names), *turns.unrolled(turns.emit_pack(names))]
        count = f"constexpr int COUNT = {lines} * {wide} / {vector};"
        return [
            count,
            "#pragma unroll",
            f"for (int c = 0; c < COUNT; c += {_EPILOGUE_UNROLL}) {{",
            *indented(body),
            "}",
        ]
