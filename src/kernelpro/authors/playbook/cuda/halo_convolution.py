"""Convolutions in CUDA that read each input once: a tile of the input with its halo serves all taps (kernel
elements).

As a product of matrices, a convolution reads each input once for every tap. With few channels, that is more
than the L2 cache can deliver. Here a tile of outputs has `coarsening` lines of `tile_m` positions, and
`tile_n` channels. Everything that it reads of the input is copied to shared memory, for 8 channels at a time,
together with their weights. Tensor cores (TF32) multiply shifted views of it with the weights of each tap.
Loops over a third dimension of the taps are treated like channels.

- Planes of the input and rows of the weights have strides that spread the reads of a warp over all banks.
- Both rotate through `pipeline_stages` buffers, as in other products.
- Operands are not rounded: tensor cores ignore their low bits, as they do for wgmma.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.halo_tiles import (
    DEPTH,
    SIDE,
    Convolution,
    convolution_of,
    fit_halo_tiles,
)
from kernelpro.authors.playbook.cuda.matmul import CudaMatmul
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations, unflatten_loops, variable
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two

_FURTHER_Y, _FURTHER_X = LoopVar("further_y", 16), LoopVar("further_x", 256)
"""The distance of a result from the thread's first one; constant in unrolled loops."""


class HaloConvolution(CudaMatmul):
    """The kernel of one convolution."""

    _constants_of_results = frozenset((_FURTHER_Y, _FURTHER_X))

    def __init__(
        self, builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int, precision: str
    ):
        super().__init__(builder, stage, design, number, precision)
        conv = convolution_of(stage, precision)
        if conv is None:
            raise NoProposal("this kernel computes only plain convolutions in TF32")
        self._convolution, self._design, self._split = conv, self._fit(conv, design), 1
        self._columns = conv.column.extent
        self._channel = LoopVar("channel", iterations(conv.channels))
        self._outer = LoopVar("outer", iterations(conv.outer))

    def _fit(self, conv: Convolution, design: StageDesign) -> StageDesign:
        return fit_halo_tiles(conv, design, self._stage.max_shared_bytes)

    def _write(self, steps: list[StoreStep], names: Mapping[Expr, str]) -> None:
        builder, number = self._builder, self._number
        builder.begin_kernel()
        shared_bytes, threads = self._shared_bytes(), f"THREADS{number}"
        positions = f"TILE_M{number} * COARSENING{number}"
        results = f"{positions} * TILE_N{number}"
        if self._convolution.outputs > 1:
            results += f" * {self._convolution.outputs}"
        tunables = self._tunables()
        builder.constraints += [
            f"{shared_bytes} <= {self._stage.max_shared_bytes}",
            f"32 * {threads} <= {results} and {results} <= 128 * {threads}",
            f"{threads} <= 2 * {positions} and {threads} <= 512",
        ]
        body = [
            f"constexpr int {', '.join(f'{name} = {name}{number}' for name in tunables)};",
            *self._constants(),
            *self._body(steps, dict(names)),
        ]
        builder.add_kernel(f"product{number}", body, self._grid(), threads, shared_bytes)

    def _tunables(self) -> list[str]:
        """Declare the tunables; returns their names."""
        builder, number, design, conv = self._builder, self._number, self._design, self._convolution
        builder.tunable(f"TILE_M{number}", design.tile_m, SIDE, 256)
        builder.tunable(f"COARSENING{number}", design.coarsening, 1, min(16, power_of_two(conv.y.positions)))
        builder.tunable(f"TILE_N{number}", design.tile_n, min(design.tile_n, 32), 128)
        stages = design.pipeline_stages
        builder.tunables[f"PIPELINE_STAGES{number}"] = (stages, sorted({2, 3, stages}))
        builder.tunable(f"THREADS{number}", design.threads, 64, 512)
        return ["TILE_M", "COARSENING", "TILE_N", "PIPELINE_STAGES", "THREADS"]

    def _shared_bytes(self) -> str:
        number = self._number
        return f"4 * PIPELINE_STAGES{number} * {self._convolution.shared_elements_text(number)}"

    def _body(self, steps: list[StoreStep], names: dict[Expr, str]) -> list[str]:
        return [*self._position(), *self._load(), *self._main_loop(), *self._epilogue(steps, names)]

    def _grid(self) -> str:
        number, conv = self._number, self._convolution
        tiles = [f"(({self._columns} + TILE_N{number} - 1) / TILE_N{number})"]
        tiles += [f"(({conv.x.positions} + TILE_M{number} - 1) / TILE_M{number})"]
        tiles += [f"(({conv.y.positions} + COARSENING{number} - 1) / COARSENING{number})"]
        return " * ".join([*tiles, str(self._outer.extent)])

    def _constants(self) -> list[str]:
        y, x, conv = self._convolution.y, self._convolution.x, self._convolution
        return [
            f"constexpr int LINES = (COARSENING - 1) * {y.stride} + {(y.taps - 1) * y.dilation + 1};",
            f"constexpr int WIDTH = ((TILE_M - 1) * {x.stride} + {(x.taps - 1) * x.dilation + 1 + conv.lead}"
            " + 3) / 4 * 4;",
            "constexpr int PLANE = (LINES * WIDTH + 23) / 32 * 32 + 8;  // 8 banks further",
            f"constexpr int IMAGE = {DEPTH} * PLANE, WEIGHTS = {self._weight_elements()};",
            f"constexpr int CHUNKS = {-(-self._channel.extent // DEPTH)};",
            f"constexpr int WARPS = THREADS / 32, WARPS_N = {self._column_warps()};",
            "constexpr int FRAGMENTS_M = COARSENING * TILE_M / (WARPS / WARPS_N) / 16;",
            "constexpr int FRAGMENTS_N = TILE_N / WARPS_N / 8;",
        ]

    def _weight_elements(self) -> str:
        return f"TILE_N * {self._convolution.weight_stride}"

    def _column_warps(self) -> str:
        return "WARPS >= 4 && TILE_N >= 64 ? 2 : 1"

    def _position(self) -> list[str]:
        """The position of the block's tile. Neighbouring blocks read the same input, for other columns."""
        return [
            *self._tile_counts(),
            "const Int first_column = blockIdx.x % TILES_N * TILE_N;",
            *self._tile_at("blockIdx.x / TILES_N"),
            *self._buffers(),
        ]

    def _tile_counts(self) -> list[str]:
        x, y = self._convolution.x, self._convolution.y
        return [
            f"constexpr int TILES_N = ({self._columns} + TILE_N - 1) / TILE_N;",
            f"constexpr int TILES_X = ({x.positions} + TILE_M - 1) / TILE_M;",
            f"constexpr int TILES_Y = ({y.positions} + COARSENING - 1) / COARSENING;",
        ]

    def _tile_at(self, tile: str) -> list[str]:
        """Lines that declare the position of a tile, from its number."""
        return [
            f"int tile = {tile};",
            "const int first_x = tile % TILES_X * TILE_M;",
            "tile /= TILES_X;",
            "const int first_y = tile % TILES_Y * COARSENING;",
            "[[maybe_unused]] const Int outer = tile / TILES_Y;",
        ]

    def _buffers(self) -> list[str]:
        return [
            "extern __shared__ uint4 shared_memory[];",
            "float* const image_tiles = (float*)shared_memory;",
            "float* const weight_tiles = image_tiles + PIPELINE_STAGES * IMAGE;",
        ]

    # --- copies -----------------------------------------------------------------------------------

    def _load(self) -> list[str]:
        return [
            "const auto load_tiles = [&](int chunk, int slot) {",
            *indented([*self._load_image(), *self._load_weights()]),
            "};",
        ]

    def _bind_printer(self) -> None:
        """Make the printer express the outer rows, the channels and the column by this kernel's variables."""
        conv = self._convolution
        self._builder.printer.loop_indices = {
            **unflatten_loops(conv.outer, variable(self._outer)),
            **unflatten_loops(conv.channels, variable(self._channel)),
            conv.column: variable(LoopVar("side", self._columns)),
        }

    def _load_image(self) -> list[str]:
        conv, printer, vector = self._convolution, self._builder.printer, self._convolution.vector
        x, y = conv.x, conv.y
        self._bind_printer()
        if vector > 1:
            self._builder.vectorized.add(conv.tensor)
        exists = [f"channel < {self._channel.extent}"] if self._channel.extent % DEPTH else []
        for guard in conv.guards:
            text, (low, high) = printer.index(guard.index), guard.index.bounds
            exists += [f"{text} >= 0"] if low < 0 else []
            exists += [f"{text} < {guard.size}"] if high >= guard.size else []
        line = f"first_y * {y.stride} + line + {y.first}"
        column = f"first_x * {x.stride} + column + {x.first - conv.lead}"
        offset = f"Int(source_line) * {conv.pitch} + source_column" if conv.pitch else "source_column"
        inside = [f"unsigned(source_column) < {x.size}u"]
        inside += [f"unsigned(source_line) < {y.size}u"] if conv.pitch else []
        copy = [
            f"const Int channel = Int(chunk) * {DEPTH} + k;",
            f"const bool exists = {' && '.join(['inside', *exists])};",
            f"const float* const source = {printer.pointer(conv.tensor)} + "
            f"(exists ? {printer.index(conv.base)} + offset : 0);",
            f"async_copy<{4 * vector}>(image + k * PLANE + line * WIDTH + column, source, exists);",
        ]
        return [
            "float* const image = image_tiles + slot * IMAGE;",
            f"constexpr int PACKS = LINES * WIDTH / {vector};",
            "constexpr int PARTS = PACKS >= THREADS ? 1 : 2 * PACKS >= THREADS ? 2 : 4;  // of the channels",
            "for (int item = threadIdx.x; item < PACKS * PARTS; item += THREADS) {",
            "    const int part = PARTS == 1 ? 0 : item / PACKS, pack = item - part * PACKS;",
            f"    const int line = pack / (WIDTH / {vector}), column = pack % (WIDTH / {vector}) * {vector};",
            f"    [[maybe_unused]] const int source_line = {line}, source_column = {column};",
            f"    const bool inside = {' && '.join(inside)};",
            f"    const Int offset = {offset};",
            "#pragma unroll",
            f"    for (int c = 0; c < {DEPTH} / PARTS; ++c) {{",
            *indented(indented([f"const int k = part * ({DEPTH} / PARTS) + c;", *copy])),
            "    }",
            "}",
        ]

    def _load_weights(self) -> list[str]:
        conv, printer = self._convolution, self._builder.printer
        taps, stride, channels = conv.taps, conv.weight_stride, self._channel.extent
        self._bind_printer()
        loops = unflatten_loops(conv.channels, variable(self._channel))
        flat = conv.weight_base.substitute(loops)
        follow = conv.weight_base.is_affine and flat.coefficient(self._channel) == taps
        strides = [factor for atom, factor in flat.terms if atom != self._channel]
        packed = follow and not any(n % 4 for n in (*strides, flat.constant)) and channels % DEPTH == 0
        in_bounds = f"{self._columns} % TILE_N == 0 || side < {self._columns}"
        pointer = printer.pointer(conv.weights)
        lines = ["float* const weights = weight_tiles + slot * WEIGHTS;"]
        if packed:
            self._builder.vectorized.add(conv.weights)
            source = printer.index(conv.weight_base)
            return [
                *lines,
                f"constexpr int WEIGHT_PACKS = TILE_N * {DEPTH * taps // 4};",
                "for (int pack = threadIdx.x; pack < WEIGHT_PACKS; pack += THREADS) {",
                f"    const int n = pack / {DEPTH * taps // 4}, term = pack % {DEPTH * taps // 4} * 4;",
                "    const Int side = first_column + n;",
                f"    [[maybe_unused]] const Int channel = Int(chunk) * {DEPTH};",
                f"    const bool exists = {in_bounds};",
                f"    async_copy<16>(weights + n * {stride} + term, "
                f"{pointer} + (exists ? {source} + term : 0), exists);",
                "}",
            ]
        by_channel = abs(flat.coefficient(conv.column)) < abs(flat.coefficient(self._channel) or taps)
        order = (
            ["k = pack / (TILE_N * TAPS)", "n = pack / TAPS % TILE_N"]
            if by_channel
            else [f"n = pack / ({DEPTH} * TAPS)", f"k = pack / TAPS % {DEPTH}"]
        )
        checked = f"({in_bounds}) && channel < {channels}" if channels % DEPTH else in_bounds
        return [
            *lines,
            f"constexpr int TAPS = {taps}, WEIGHT_PACKS = TILE_N * {DEPTH} * TAPS;",
            "for (int pack = threadIdx.x; pack < WEIGHT_PACKS; pack += THREADS) {",
            f"    const int {', '.join(order)}, tap = pack % TAPS;",
            f"    const Int side = first_column + n, channel = Int(chunk) * {DEPTH} + k;",
            f"    const bool exists = {checked};",
            f"    async_copy<4>(weights + n * {stride} + k * TAPS + tap, "
            f"{pointer} + (exists ? {printer.index(conv.weight_base)} + tap : 0), exists);",
            "}",
        ]

    # --- the product ------------------------------------------------------------------------------

    def _main_loop(self) -> list[str]:
        conv, x, y = self._convolution, self._convolution.x, self._convolution.y
        taps, stride = conv.taps, conv.weight_stride
        tap = f"(ky * {x.taps} + kx)"
        stored = f"({taps - 1} - {tap})" if conv.reversed else tap
        positions = f"(place % TILE_M) * {x.stride} + place / TILE_M * {y.stride} * WIDTH"
        multiply = [
            f"const float* const shifted = image + ky * {y.dilation} * WIDTH + kx * {x.dilation};",
            "unsigned a[FRAGMENTS_M][4], b[FRAGMENTS_N][2];",
            "#pragma unroll",
            "for (int i = 0; i < FRAGMENTS_M; ++i) {",
            "#pragma unroll",
            "    for (int q = 0; q < 4; ++q)",
            f"        memcpy(&a[i][q], shifted + places[i] + q % 2 * {8 * x.stride} + q / 2 * 4 * PLANE, 4);",
            "}",
            "#pragma unroll",
            "for (int n = 0; n < FRAGMENTS_N; ++n) {",
            "#pragma unroll",
            "    for (int q = 0; q < 2; ++q)",
            f"        memcpy(&b[n][q], weights + n * {8 * stride} + q * {4 * taps} + {stored}, 4);",
            "}",
            "#pragma unroll",
            "for (int i = 0; i < FRAGMENTS_M; ++i) {",
            "#pragma unroll",
            "    for (int n = 0; n < FRAGMENTS_N; ++n) mma<TF32>(acc[i][n], a[i], b[n][0], b[n][1]);",
            "}",
        ]
        body = [
            "async_wait<PIPELINE_STAGES - 2>();",
            "__syncthreads();",
            "const int next = chunk + PIPELINE_STAGES - 1;",
            "if (next < CHUNKS) load_tiles(next, next % PIPELINE_STAGES);",
            "async_commit();",
            "const float* const image = image_tiles + chunk % PIPELINE_STAGES * IMAGE + lane % 4 * PLANE"
            f" + {conv.lead};",
            "const float* const weights = weight_tiles + chunk % PIPELINE_STAGES * WEIGHTS"
            f" + (tile_column + lane / 4) * {stride} + lane % 4 * {taps};",
            f"for (int ky = 0; ky < {y.taps}; ++ky) {{",
            "#pragma unroll",
            f"    for (int kx = 0; kx < {x.taps}; ++kx) {{",
            *indented(indented(multiply)),
            "    }",
            "}",
        ]
        return [
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
            "const int tile_row = warp / WARPS_N * FRAGMENTS_M * 16;",
            "const int tile_column = warp % WARPS_N * FRAGMENTS_N * 8;",
            "int places[FRAGMENTS_M];  // of the first element of a thread's fragments in a plane",
            "#pragma unroll",
            "for (int i = 0; i < FRAGMENTS_M; ++i) {",
            "    const int place = tile_row + i * 16 + lane / 4;",
            f"    places[i] = {positions};",
            "}",
            "float acc[FRAGMENTS_M][FRAGMENTS_N][4] = {};",
            "for (int chunk = 0; chunk < PIPELINE_STAGES - 1; ++chunk) {",
            "    if (chunk < CHUNKS) load_tiles(chunk, chunk);",
            "    async_commit();",
            "}",
            "#pragma unroll 1",
            "for (int chunk = 0; chunk < CHUNKS; ++chunk) {",
            *indented(body),
            "}",
        ]

    def _row_indices(self) -> dict[LoopVar, IndexExpr]:
        conv, rows = self._convolution, self._contraction.rows
        y = variable(LoopVar("own_y", conv.y.positions)) + variable(_FURTHER_Y)
        x = variable(LoopVar("own_x", conv.x.positions)) + variable(_FURTHER_X)
        loops = rows[len(conv.outer) :]
        return {
            **unflatten_loops(conv.outer, variable(self._outer)),
            **dict(zip(loops, (y, x)[-len(loops) :], strict=True)),
        }

    def _row_lines(self, offset: str) -> list[str]:
        return [
            "const int place = i / 2 * 16;  // a warp's fragments lie in one line, or fill whole lines",
            "const Int own_y = first_y + tile_row / TILE_M, further_y = place / TILE_M;",
            "const Int own_x = first_x + tile_row % TILE_M + lane / 4;",
            "const Int further_x = place % TILE_M + i % 2 * 8;",
        ]

    def _rows_in_bounds(self) -> tuple[str, str]:
        x, y = self._convolution.x, self._convolution.y
        always = f"{y.positions} % COARSENING == 0 && {x.positions} % TILE_M == 0"
        return always, f"own_y + further_y < {y.positions} && own_x + further_x < {x.positions}"
