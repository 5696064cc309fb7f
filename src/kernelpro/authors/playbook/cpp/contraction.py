"""A convolution, or another sum of products, as a blocked product whose operands are packed on the fly.

The output positions of one channel lie next to each other in memory, so vectors hold positions. A thread
computes a block of positions and channels in steps over the sum:

1. It packs what the positions read in this step into panels of TILE_COLUMNS positions, with zeros where a
   guard fails. A run of positions along the last loop reads along one line of memory.
2. It multiplies each panel with tiles of the weights, which all threads packed before.
3. After the last step, it stores the block run by run, with the steps of the stage fused.
"""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.loop_nest import LoopNest, flat_index, indented, loop, nest, unflattened
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import LoopVar, iterations, variable
from kernelpro.authors.playbook.ir.stages import Guard, Stage
from kernelpro.authors.playbook.schedule.contractions import Contraction, find_contraction
from kernelpro.authors.playbook.schedule.passes import RowPass

_MIN_SIDE = 4
"""Shorter sides fill too little of a tile."""
_MAX_TILE_ROWS = 12
"""The largest TILE_ROWS for any instruction set (prelude.py)."""
_BLOCK_M = (64, 128, 256, 512)
_BLOCK_N = (48, 96, 192, 384)
_BLOCK_K = (128, 256, 512, 1024)


def packable(stage: Stage) -> Contraction | None:
    """The contraction of a stage that ContractionNest can write; None if there is none. Its rows include the
    last outer loop, and its columns become the rows of tiles."""
    contraction = None if stage.product else find_contraction(stage, _MIN_SIDE)
    if contraction is None or contraction.right_guards:
        return None
    if not all(guard.index.is_affine for guard in contraction.guards):
        return None
    last = stage.outer[-1]
    if last in contraction.columns and not contraction.guards:
        left, right = contraction.right, contraction.left
        rows, columns = contraction.columns, contraction.rows
        return Contraction(left, right, contraction.batch, rows, columns, contraction.depth, ())
    return contraction if last in contraction.rows else None


class ContractionNest(LoopNest):
    """Computes blocks of positions (rows of the contraction) and channels (its columns)."""

    def lines(self) -> list[str]:
        """Write the loop nest."""
        contraction = packable(self.stage)
        assert contraction
        self._contraction, self.kernel.multiplies_tiles = contraction, True
        self._ctype = arithmetic_type(contraction.left.dtype)
        self._packed = f"packed{self.number}"
        batches, channels = iterations(contraction.batch), iterations(contraction.columns)
        depth = iterations(contraction.depth)
        dtype = "float64" if self._ctype == "double" else "float32"
        self.kernel.scratch[self._packed] = (dtype, batches * depth * (channels + _MAX_TILE_ROWS))
        constants = [
            f"constexpr int ROWS = even_rows({channels});",
            f"constexpr long TILES = ({channels} + ROWS - 1) / ROWS;",
        ]
        return ["{", *indented([*constants, *self._pack_weights(), *self._blocks()]), "}"]

    def _value(self, value: Expr) -> tuple[list[str], str]:
        """Statements for the value's shared subexpressions, and the text of the value."""
        names: Names = {}
        return self.assign([value], names), self.printer.text(value, names)

    def _pack_weights(self) -> list[str]:
        """Stores the weights in tiles of ROWS channels; channels beyond the last one are clamped to it."""
        c = self._contraction
        before, text = self._value(c.right)
        position = f"(chunk * {iterations(c.depth)} + {flat_index(c.depth)}) * ROWS + r"
        channel = f"const long channel = smaller(chunk % TILES * ROWS + r, {iterations(c.columns) - 1}L);"
        taps = nest(c.depth[1:], [*before, f"{self._packed}[{position}] = {text};"])
        tile = nest(c.depth[:1], loop("r", "ROWS", [channel, *unflattened("channel", c.columns), *taps]))
        body = ["const long batch = chunk / TILES;", *unflattened("batch", c.batch), *tile]
        return self.parallel_loop(f"{iterations(c.batch)} * TILES", "chunk", body)

    def _blocks(self) -> list[str]:
        c, design, kernel = self._contraction, self.design, self.kernel
        block_m = kernel.tunable(f"BLOCK_M{self.number}", design.block_m, _BLOCK_M)
        block_n = kernel.tunable(f"BLOCK_N{self.number}", design.block_n, _BLOCK_N)
        block_k = kernel.tunable(f"BLOCK_K{self.number}", design.block_k, _BLOCK_K)
        first, *taps = c.depth
        window, positions = iterations(taps), iterations(c.rows)
        weights = (
            f"{self._packed} + ((batch * TILES + first_tile + tile) * {first.extent} + start) "
            f"* {window} * ROWS"
        )
        multiply = [
            f"multiply_tile<ROWS>({weights}, right + panel * TERMS, "
            "block + tile * ROWS * SIDE + panel, terms, SIDE, start == 0);"
        ]
        step = [
            f"const long stop = smaller(start + STEP, {first.extent}L), terms = (stop - start) * {window};",
            *_panel_loop(self._pack_panel()),
            *_panel_loop(loop("tile", "tile_count", multiply)),
        ]
        body = [
            "const long batch = chunk / (BLOCKS_M * BLOCKS_N), first = chunk / BLOCKS_N % BLOCKS_M * SIDE;",
            "const long first_tile = chunk % BLOCKS_N * TILE_COUNT;",
            "const long tile_count = smaller(TILE_COUNT, TILES - first_tile);",
            f"const long width = smaller(SIDE, {positions} - first);",
            *unflattened("batch", c.batch),
            f"alignas(64) static thread_local {self._ctype} blocks[TILE_COUNT * ROWS * SIDE];",
            f"alignas(64) static thread_local {self._ctype} panels[TERMS * SIDE];",
            f"{self._ctype} *const block = blocks, *const right = panels;",
            f"for (long start = 0; start < {first.extent}; start += STEP) {{",
            *indented(step),
            "}",
            *self._store_block(),
        ]
        constants = [
            f"constexpr long SIDE = panel_count({block_m}) * TILE_COLUMNS;",
            f"constexpr long BLOCKS_M = ({positions} + SIDE - 1) / SIDE;",
            f"constexpr long TILE_COUNT = ({block_n} + ROWS - 1) / ROWS;",
            "constexpr long BLOCKS_N = (TILES + TILE_COUNT - 1) / TILE_COUNT;",
            f"constexpr long STEP = ({block_k} + {window - 1}) / {window}, TERMS = STEP * {window};",
        ]
        chunks = f"{iterations(c.batch)} * BLOCKS_M * BLOCKS_N"
        return [*constants, *self.parallel_loop(chunks, "chunk", body)]

    def _run_loop(self, start: str, end: str, body: list[str]) -> list[str]:
        """A loop over the runs of neighbouring positions from `start` to `end` of the block: position j, and
        `length` positions from `origin` in the last loop on."""
        *lead, last = self._contraction.rows
        define = [
            "const long position = first + j;",
            f"const long line = position / {last.extent}, origin = position % {last.extent};",
            f"length = smaller({end} - j, {last.extent} - origin);",
        ]
        lines = [*define, *unflattened("line", tuple(lead)), *body]
        return [f"for (long j = {start}, length; j < {end}; j += length) {{", *indented(lines), "}"]

    def _lane_loop(self, start: str, end: str, body: list[str]) -> list[str]:
        define = f"const long {self._contraction.rows[-1].name} = origin + lane;"
        simd = ["#pragma omp simd"] if self.design.lanes > 1 else []
        return [*simd, f"for (long lane = {start}; lane < {end}; ++lane) {{", *indented([define, *body]), "}"]

    def _pack_panel(self) -> list[str]:
        """Packs a panel run by run. Where guards do not depend on the first loop of the sum (of convolutions:
        over channels), it is the innermost loop, so that the guards are evaluated less often."""
        c = self._contraction
        first, taps = c.depth[0], c.depth[1:]
        before, text = self._value(c.left)
        copy = [*before, f"target[lane] = {text};"]
        zeros = self._lane_loop("0", "length", ["target[lane] = 0;"]) if c.guards else []
        bounds, start, end = self._bounds(c.guards)
        row = f"({first.name} - start) * {iterations(taps)}" + (f" + {flat_index(taps)}" if taps else "")
        target = f"{self._ctype}* target = right + panel * TERMS + j - panel + ({row}) * TILE_COLUMNS;"

        def over_first(body: list[str]) -> list[str]:
            header = f"for (long {first.name} = start; {first.name} < stop; ++{first.name}) {{"
            return [header, *indented(body), "}"]

        whole = [target, *self._lane_loop("0", "TILE_COLUMNS", copy)]
        part = [target, *zeros, *self._lane_loop(start, end, copy)]
        if not before:  # statements before the element would load where no position is
            select = f"if (lane < length) target[lane] = lane >= {start} && lane < {end} ? {text} : 0;"
            masked = self._lane_loop("0", "TILE_COLUMNS", [select])
            part = [target, "if (HAS_MASKS) {", *indented(masked), "} else {", *indented(part[1:]), "}"]
        is_outermost = any(first in guard.index.variables for guard in c.guards)
        if not is_outermost:
            whole, part = over_first(whole), over_first(part)
        condition = f"if ({end} - {start} == TILE_COLUMNS) {{"
        body = nest(taps, [*bounds, condition, *indented(whole), "} else {", *indented(part), "}"])
        body = over_first(body) if is_outermost else body
        return self._run_loop("panel", "smaller(panel + TILE_COLUMNS, width)", body)

    def _bounds(self, guards: tuple[Guard, ...]) -> tuple[list[str], str, str]:
        """The lanes of a run for which the guards hold: statements that compute them, and the first lane and
        the end."""
        if not guards:
            return [], "0", "length"
        last = self._contraction.rows[-1]
        lines, fails = ["long from = 0, to = length;"], []
        for guard in guards:
            factor = guard.index.coefficient(last)
            at_origin = self.printer.index(
                guard.index.substitute({last: variable(LoopVar("origin", last.extent))})
            )
            if factor:
                lines.append(f"from = larger(from, ceil_div(-({at_origin}), {factor}));")
                lines.append(f"to = smaller(to, ceil_div({guard.size} - ({at_origin}), {factor}));")
            else:
                fails.append(f"{at_origin} < 0 || {at_origin} >= {guard.size}")
        if fails:
            lines.append(f"if ({' || '.join(fails)}) to = 0;")
        return lines, "from", "to"

    def _store_block(self) -> list[str]:
        c = self._contraction
        (step,) = self.stage.reductions
        result = f"const {self._ctype} {step.name} = result[lane];"
        stores = self.element(RowPass((), list(self.stage.stores)), {}, "")
        body = [
            *unflattened("channel", c.columns),
            f"const {self._ctype}* result = block + (channel - first_tile * ROWS) * SIDE + j;",
            *self._lane_loop("0", "length", [result, *stores]),
        ]
        end = f"smaller((first_tile + tile_count) * ROWS, {iterations(c.columns)}L)"
        header = f"for (long channel = first_tile * ROWS; channel < {end}; ++channel) {{"
        return self._run_loop("0", "width", [header, *indented(body), "}"])


def _panel_loop(body: list[str]) -> list[str]:
    return ["for (long panel = 0; panel < width; panel += TILE_COLUMNS) {", *indented(body), "}"]
