"""Transposed convolutions with a stride in CUDA: all phases of a tile of outputs from one tile of the input.

A position of the input has one output for each phase; with stride 2 in two dimensions there are 4. A tile has
all of them for its positions and channels, in registers: a thread's results for neighbouring phases of a line
are neighbours in memory. For each tap, only the phases that have a weight for it are computed.

A block computes `tiles` tiles one after another, and its copies run ahead into the next tile. If there are
several, the weights of all channels stay in shared memory.
"""

from __future__ import annotations

from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.halo_convolution import HaloConvolution
from kernelpro.authors.playbook.cuda.halo_tiles import DEPTH, Convolution, ConvolutionAxis
from kernelpro.authors.playbook.cuda.matmul import EPILOGUE_UNROLL
from kernelpro.authors.playbook.cuda.phase_tiles import (
    BANKS,
    chunks,
    column_stride,
    fit_phase_tiles,
    row_padding,
    weight_vector,
)
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import LoopVar, variable
from kernelpro.authors.playbook.ir.stages import StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.passes import RowPass

_FURTHER_COLUMN = LoopVar("further_column", 128)
"""As for rows: the distance of a result's column from the thread's first one."""


class PhasedHaloConvolution(HaloConvolution):
    """The kernel of one transposed convolution with a stride."""

    _constants_of_results = HaloConvolution._constants_of_results | {_FURTHER_COLUMN}

    def _fit(self, conv: Convolution, design: StageDesign) -> StageDesign:
        return fit_phase_tiles(conv, design, self._stage.max_shared_bytes)

    def _tunables(self) -> list[str]:
        names = super()._tunables()
        self._builder.tunable(f"TILES{self._number}", self._design.tiles, 1, 32)
        return [*names, "TILES"]

    def _shared_bytes(self) -> str:
        number, conv = self._number, self._convolution
        stages, several = f"PIPELINE_STAGES{number}", f"(TILES{number} > 1)"
        slots = f"({several} * {chunks(conv)} + (1 - {several}) * {stages})"
        row = f"((TILE_N{number} * {column_stride(conv)} + {BANKS - 1}) / {BANKS} * {BANKS}"
        return (
            f"{4 * DEPTH} * ({stages} * {conv.plane_text(number)} + {slots} * {row} + {row_padding(conv)}))"
        )

    def _grid(self) -> str:
        number, conv = self._number, self._convolution
        tiles = f"(({conv.x.positions} + TILE_M{number} - 1) / TILE_M{number})"
        tiles += f" * (({conv.y.positions} + COARSENING{number} - 1) / COARSENING{number})"
        blocks = f"(({tiles} * {self._outer.extent} + TILES{number} - 1) / TILES{number})"
        return f"(({self._columns} + TILE_N{number} - 1) / TILE_N{number}) * {blocks}"

    def _weight_elements(self) -> str:
        return f"{DEPTH} * ROW"

    def _column_warps(self) -> str:
        """Warps side by side have 64 columns and phases each, if there are enough of them."""
        share = f"TILE_N / {max(64 // power_of_two(self._convolution.outputs), 8)}"
        return f"{share} < 1 ? 1 : {share} < WARPS ? {share} : WARPS"

    def _body(self, steps: list[StoreStep], names: dict[Expr, str]) -> list[str]:
        return [
            *self._tile_counts(),
            f"constexpr int ALL_TILES = TILES_X * TILES_Y * {self._outer.extent};",
            "constexpr bool KEEPS_WEIGHTS = TILES > 1;",
            "const Int first_column = blockIdx.x % TILES_N * TILE_N;",
            "const int first_tile = blockIdx.x / TILES_N * TILES;",
            "const int steps = minimum(int(TILES), ALL_TILES - first_tile) * CHUNKS;",
            *self._buffers(),
            "const auto load_tiles = [&](int step) {",
            *indented(self._load_step()),
            "};",
            *self._main_loop_of_tiles(self._epilogue(steps, names)),
        ]

    def _constants(self) -> list[str]:
        conv = self._convolution
        row = f"(TILE_N * {column_stride(conv)} + {BANKS - 1}) / {BANKS} * {BANKS} + {row_padding(conv)}"
        return [f"constexpr int ROW = {row};  // of a channel's weights", *super()._constants()]

    # --- copies -----------------------------------------------------------------------------------

    def _load_step(self) -> list[str]:
        return [
            "const int chunk = step % CHUNKS, slot = step % PIPELINE_STAGES;",
            *self._tile_at("first_tile + step / CHUNKS"),
            *self._load_image(),
            "if (!KEEPS_WEIGHTS || step < CHUNKS) {",
            *indented(self._load_weights()),
            "}",
        ]

    def _load_weights(self) -> list[str]:
        """Weights of neighbouring columns are contiguous. They are copied in packs of 4, if these are aligned
        and belong to one column, or if columns follow each other in shared memory, too."""
        conv, printer = self._convolution, self._builder.printer
        count, stride, channels = conv.weights_per_channel, column_stride(conv), self._channel.extent
        self._bind_printer()
        index = printer.resolve(conv.weight_base)
        side = LoopVar("side", self._columns)
        strides = [factor for atom, factor in index.terms if atom != side]
        aligned = not any(n % 4 for n in (*strides, index.constant, self._columns * count))
        is_joint = aligned and stride == count == index.coefficient(side)
        vector = 4 if is_joint or (aligned and count % 4 == 0 == index.coefficient(side) % 4) else 1
        if vector > 1:
            self._builder.vectorized.add(conv.weights)
        per_column = f"(TILE_N * {count} / {vector})" if is_joint else str(count // vector)
        exists = [] if channels % DEPTH == 0 else [f"channel < {channels}"]
        limit = f"pack % PER_CHANNEL * 4 < ({self._columns} - first_column) * {count}" if is_joint else ""
        exists.append(f"({self._columns} % TILE_N == 0 || {limit or f'side < {self._columns}'})")
        return [
            "float* const weights = weight_tiles + (KEEPS_WEIGHTS ? chunk : slot) * WEIGHTS;",
            f"constexpr int PER_COLUMN = {per_column}, PER_CHANNEL = TILE_N * {count} / {vector};",
            f"for (int pack = threadIdx.x; pack < {DEPTH} * PER_CHANNEL; pack += THREADS) {{",
            "    const int k = pack / PER_CHANNEL, n = pack % PER_CHANNEL / PER_COLUMN;",
            f"    const int element = pack % PER_COLUMN * {vector};",
            f"    const Int side = first_column + n, channel = Int(chunk) * {DEPTH} + k;",
            f"    const bool exists = {' && '.join(exists)};",
            f"    async_copy<{4 * vector}>(weights + k * ROW + n * {stride} + element, "
            f"{printer.pointer(conv.weights)} + (exists ? {printer.index(conv.weight_base)} + element : 0), "
            "exists);",
            "}",
        ]

    # --- the product ------------------------------------------------------------------------------

    def _main_loop_of_tiles(self, epilogue: list[str]) -> list[str]:
        conv, x, y = self._convolution, self._convolution.x, self._convolution.y
        body = [
            "const int step = first_step + chunk, next = step + PIPELINE_STAGES - 1;",
            "async_wait<PIPELINE_STAGES - 2>();",
            "__syncthreads();",
            "if (next < steps) load_tiles(next);",
            "async_commit();",
            "const float* const image = image_tiles + step % PIPELINE_STAGES * IMAGE + place;",
            "const unsigned* const weights = (const unsigned*)weight_tiles"
            " + (KEEPS_WEIGHTS ? chunk : step % PIPELINE_STAGES) * WEIGHTS + weight;",
            *self._multiply(),
        ]
        position = f"tile_row % TILE_M * {x.stride} + tile_row / TILE_M * {y.stride} * WIDTH"
        return [
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
            "const int tile_row = warp / WARPS_N * FRAGMENTS_M * 16;",
            "const int tile_column = warp % WARPS_N * FRAGMENTS_N * 8;",
            "// of the first element of a thread's fragments in the tile of the input, and of its weights",
            f"const int place = {position} + lane / 4 * {x.stride} + lane % 4 * PLANE + {conv.lead};",
            f"const int weight = lane % 4 * ROW + (tile_column + lane / 4) * {column_stride(conv)};",
            "for (int step = 0; step < PIPELINE_STAGES - 1; ++step) {",
            "    if (step < steps) load_tiles(step);",
            "    async_commit();",
            "}",
            "#pragma unroll 1",
            "for (int first_step = 0; first_step < steps; first_step += CHUNKS) {",
            f"    float acc[FRAGMENTS_M][FRAGMENTS_N][{conv.outputs}][4] = {{}};",
            "#pragma unroll 1",
            "    for (int chunk = 0; chunk < CHUNKS; ++chunk) {",
            *indented(indented(body)),
            "    }",
            *indented(self._tile_at("first_tile + first_step / CHUNKS")),
            *indented(epilogue),
            "}",
        ]

    def _multiply(self) -> list[str]:
        """All loops are unrolled, so that pairs of a tap and a phase without a weight cost nothing."""
        conv, x, y = self._convolution, self._convolution.x, self._convolution.y
        stride, vector = column_stride(conv), weight_vector(conv)
        line = f"(i * 16 % TILE_M) * {x.stride} + i * 16 / TILE_M * {y.stride} * WIDTH"
        tap = f"ty * {y.dilation} * WIDTH + tx * {x.dilation}"
        first = f"weights + n * {8 * stride} + q * 4 * ROW + ky * {x.weights}"
        read = (
            f"load_shared(b[n][q], {first});"
            if vector > 1
            else f"for (int kx = 0; kx < {x.weights}; ++kx) b[n][q][kx] = ({first})[kx];"
        )
        return [
            "#pragma unroll",
            f"for (int ty = 0; ty < {y.taps}; ++ty) {{",
            f"    unsigned a[{x.taps}][FRAGMENTS_M][4];",
            "#pragma unroll",
            f"    for (int tx = 0; tx < {x.taps}; ++tx) {{",
            "#pragma unroll",
            "        for (int i = 0; i < FRAGMENTS_M; ++i) {",
            "#pragma unroll",
            "            for (int q = 0; q < 4; ++q)",
            f"                memcpy(&a[tx][i][q], image + {tap} + {line}"
            f" + q % 2 * {8 * x.stride} + q / 2 * 4 * PLANE, 4);",
            "        }",
            "    }",
            "#pragma unroll",
            f"    for (int py = 0; py < {y.phases}; ++py) {{",
            f"        const int ky = {_weight('y', y)};",
            f"        if (ky < 0 || ky >= {y.weights}) continue;",
            f"        unsigned b[FRAGMENTS_N][2][{x.weights}];",
            "#pragma unroll",
            "        for (int n = 0; n < FRAGMENTS_N; ++n) {",
            "#pragma unroll",
            "            for (int q = 0; q < 2; ++q) {",
            *(["#pragma unroll"] if vector == 1 else []),
            f"                {read}",
            "            }",
            "        }",
            "#pragma unroll",
            f"        for (int tx = 0; tx < {x.taps}; ++tx) {{",
            "#pragma unroll",
            f"            for (int px = 0; px < {x.phases}; ++px) {{",
            f"                const int kx = {_weight('x', x)};",
            f"                if (kx < 0 || kx >= {x.weights}) continue;",
            "#pragma unroll",
            "                for (int i = 0; i < FRAGMENTS_M; ++i) {",
            "#pragma unroll",
            "                    for (int n = 0; n < FRAGMENTS_N; ++n)",
            f"                        mma<TF32>(acc[i][n][py * {x.phases} + px], a[tx][i], "
            "b[n][0][kx], b[n][1][kx]);",
            "                }",
            "            }",
            "        }",
            "    }",
            "}",
        ]

    # --- epilogue ---------------------------------------------------------------------------------

    @property
    def _element(self) -> str:
        x = self._convolution.x
        return f"acc[i / 2][n / 2][phase_y * {x.phases} + phase_x + j][i % 2 * 2 + n % 2]"

    def _epilogue(self, steps: list[StoreStep], names: dict[Expr, str]) -> list[str]:
        """The steps for a thread's results. A pack has the phases of a line, which are neighbours in memory,
        unless some of them lie beyond the result."""
        conv, contraction = self._convolution, self._contraction
        y, x = conv.y, conv.x
        guards = list(dict.fromkeys(guard for step in steps for guard in step.guards))
        x_loops = conv.phases[-1:] if x.phases > 1 else ()
        beyond = any(guard.index.variables & set(x_loops) for guard in guards)
        vector = x.phases if x.phases in (2, 4) and not beyond else 1
        number_x = variable(LoopVar("phase_x", x.phases // vector))
        phase_x = number_x * vector + variable(LoopVar("j", vector))
        phase_y = variable(LoopVar("phase_y", y.phases))
        loop_indices = {
            **self._row_indices(),
            conv.column: variable(LoopVar("own_column", self._columns)) + variable(_FURTHER_COLUMN),
            **dict.fromkeys(conv.phases, phase_y),
            **dict.fromkeys(x_loops, phase_x),
        }
        packs = x.phases // vector
        loop = ThreadLoop(
            self._builder,
            RowPass((*contraction.rows, *contraction.columns), list(steps)),
            vector,
            loop_indices,
            always_in_bounds=f"({self._rows_in_bounds()[0]} && {self._columns} % TILE_N == 0)",
            in_bounds=f"{self._rows_in_bounds()[1]} && own_column + further_column < {self._columns}",
            index_lines=[
                f"[[maybe_unused]] const int phase_x = (c + u) % {packs}, "
                f"phase_y = (c + u) / {packs} % {y.phases};",
                f"const int n = (c + u) / {packs * y.phases} % (2 * FRAGMENTS_N);",
                f"const int i = (c + u) / ({packs * y.phases} * 2 * FRAGMENTS_N);",
                *self._row_lines("i / 2 * 16 + i % 2 * 8 + lane / 4"),
                "const Int own_column = first_column + tile_column + lane % 4 * 2;",
                "const Int further_column = n / 2 * 8 + n % 2;",
            ],
            iterations="ITERATIONS",
            unroll=str(EPILOGUE_UNROLL),
            constants=self._constants_of_results | {*phase_y.variables, *number_x.variables},
        )
        loop.bind_printer()
        column_values = self._load_column_values(steps, names)
        body = self._epilogue_loop(loop, guards, names)
        count = f"4 * FRAGMENTS_M * FRAGMENTS_N * {packs * y.phases}"
        return [*column_values, f"constexpr int ITERATIONS = {count};", "#pragma unroll", *body]

    def _load_column_values(self, steps: list[StoreStep], names: dict[Expr, str]) -> list[str]:
        """Load what depends only on the column, such as a bias, once for all rows and phases. Adds the names
        of the values to `names`."""
        printer, conditions = self._builder.printer, self._builder.load_conditions
        nodes = nodes_of([step.value for step in steps], "load")
        loads = [node for node in nodes if node.variables == {self._convolution.column}]
        lines, body = list[str](), list[str]()
        for node in sorted(loads, key=lambda node: node.number):
            if not node.operands and node not in conditions:
                lines.append(f"{arithmetic_type(node.dtype)} v{node.number}[2 * FRAGMENTS_N];")
                body.append(f"v{node.number}[n] = {printer.text(node, names)};")
                names[node] = f"v{node.number}[n]"
        if not body:
            return []
        position = "first_column + tile_column + lane % 4 * 2 + n / 2 * 8 + n % 2"
        columns = [
            f"const Int own_column = minimum(Int({position}), Int({self._columns - 1})), further_column = 0;"
        ]
        loop = "for (int n = 0; n < 2 * FRAGMENTS_N; ++n) {"
        return [*lines, "#pragma unroll", loop, *indented([*columns, *body]), "}"]


def _weight(name: str, axis: ConvolutionAxis) -> str:
    """The weight of phase p and tap t along one dimension, which may not exist."""
    return f"p{name} + {axis.shift} - {axis.phases} * t{name}"
