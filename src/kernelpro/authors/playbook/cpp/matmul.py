"""A stage with a matrix product: row by row, or in blocks with packed operands and tiles of results that stay
in registers."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.loop_nest import indented, loop, nest, unflattened
from kernelpro.authors.playbook.cpp.rows import RowNest
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import LoopVar, iterations
from kernelpro.authors.playbook.ir.stages import MatrixProduct

_MAX_TILE_COLUMNS = 32
"""Columns are padded to a multiple of this: the largest TILE_COLUMNS for any instruction set (prelude.py)."""
_BLOCK_K = (128, 256, 512)
_BLOCK_M = (30, 60, 120, 240)


class MatmulNest(RowNest):
    """Computes the product of a row, or of a block of rows, and then the steps of each row."""

    def lines(self) -> list[str]:
        """Write the loop nest."""
        assert self.stage.product
        return self._blocks(self.stage.product) if self.design.packed else self._rows(self.stage.product)

    def _value(self, value: Expr) -> tuple[list[str], str]:
        """Statements for the value's shared subexpressions, and the text of the value."""
        names: Names = {}
        return self.assign([value], names), self.printer.text(value, names)

    def _rows(self, product: MatrixProduct) -> list[str]:
        ctype, column = arithmetic_type(product.left.dtype), product.column
        before, a = self._value(product.left)
        inside, b = self._value(product.right)
        result = f"{product.name}[{column.name}]"
        body = [f"{ctype} {product.name}[{column.extent}];"]
        if _stride(product.right, column) == 1:
            body += nest((column,), [f"{result} = 0;"])
            update = nest((column,), [*inside, f"{result} += factor * {b};"], simd=self.design.lanes > 1)
            body += nest(product.depth, [*before, f"const {ctype} factor = {a};", *update])
        else:
            pragma = ["#pragma omp simd reduction(+ : dot)"] if self.design.lanes > 1 else []
            sum_loop = nest(product.depth, [*before, *inside, f"dot += {a} * {b};"])
            body += nest((column,), [f"{ctype} dot = 0;", *pragma, *sum_loop, f"{result} = dot;"])
        body = [*unflattened("row", self.stage.outer), *body, *self.row()]
        return self.parallel_loop(self.stage.rows, "row", body)

    def _blocks(self, product: MatrixProduct) -> list[str]:
        """Packs the whole right operand, then computes blocks of block_m rows in steps of block_k terms."""
        self.kernel.multiplies_tiles = True
        ctype, name, row = arithmetic_type(product.left.dtype), product.name, self.stage.outer[-1]
        columns, depth = product.column.extent, product.depth[0].extent
        batches, panels = iterations(product.batch), f"panel_count({columns})"
        stride = -(-columns // _MAX_TILE_COLUMNS) * _MAX_TILE_COLUMNS
        dtype = "float64" if ctype == "double" else "float32"
        self.kernel.scratch[f"packed_{name}"] = (dtype, batches * depth * stride)
        block_m = self.kernel.tunable(f"BLOCK_M{self.number}", self.design.block_m, _BLOCK_M)
        block_k = self.kernel.tunable(f"BLOCK_K{self.number}", self.design.block_k, _BLOCK_K)
        blocks = f"(({row.extent} + {block_m} - 1) / {block_m})"
        buffer_rows = f"({block_m} + TILE_ROWS)"
        multiply = (
            f"multiply_tile<TILE_ROWS>(left + tile * {block_k}, right, "
            f"block + tile * {stride} + panel * TILE_COLUMNS, k_count, {stride}, k_start == 0);"
        )
        panel = f"packed_{name} + ((batch * {panels} + panel) * {depth} + k_start) * TILE_COLUMNS"
        body = [
            f"const long first = chunk % {blocks} * {block_m};",
            f"const long height = smaller(long({block_m}), {row.extent} - first);",
            f"const long batch = chunk / {blocks};",
            *unflattened("batch", product.batch),
            f"static thread_local {ctype} block[{buffer_rows} * {stride}], left[{buffer_rows} * {block_k}];",
            f"for (long k_start = 0; k_start < {depth}; k_start += {block_k}) {{",
            f"    const long k_count = smaller(long({block_k}), {depth} - k_start);",
            *indented(self._pack_left(product, row, block_k)),
            *indented(loop("panel", panels, [f"const {ctype}* right = {panel};", *_tile_loop([multiply])])),
            "}",
        ]
        row_body = [f"const long {row.name} = first + r;", f"const {ctype}* {name} = block + r * {stride};"]
        body += loop("r", "height", [*row_body, *self.row()])
        return [*self._pack_right(product), *self.parallel_loop(f"{batches} * {blocks}", "chunk", body)]

    def _pack_left(self, product: MatrixProduct, row: LoopVar, block_k: str) -> list[str]:
        """Stores each tile column by column; rows beyond the last one are clamped to it."""
        before, text = self._value(product.left)
        k = product.depth[0].name
        inner = [*before, f"left[tile * {block_k} + ({k} - k_start) * TILE_ROWS + r] = {text};"]
        lines = [f"const long {row.name} = smaller(first + tile + r, {row.extent - 1}L);"]
        lines += [f"for (long {k} = k_start; {k} < k_start + k_count; ++{k}) {{", *indented(inner), "}"]
        return _tile_loop(loop("r", "TILE_ROWS", lines))

    def _pack_right(self, product: MatrixProduct) -> list[str]:
        """Stores panels of TILE_COLUMNS columns row by row; columns beyond the last one are clamped to it."""
        before, text = self._value(product.right)
        column, (depth,), panels = product.column, product.depth, f"panel_count({product.column.extent})"
        position = f"(chunk * {depth.extent} + {depth.name}) * TILE_COLUMNS + j"
        store = [*before, f"packed_{product.name}[{position}] = {text};"]
        clamped = f"smaller(chunk % {panels} * TILE_COLUMNS + j, {column.extent - 1}L)"
        define_column = f"const long {column.name} = {clamped};"
        body = [f"const long batch = chunk / {panels};", *unflattened("batch", product.batch)]
        if _stride(product.right, depth) == 1:
            body += loop("j", "TILE_COLUMNS", [define_column, *nest((depth,), store)])
        else:
            body += nest((depth,), loop("j", "TILE_COLUMNS", [define_column, *store]))
        return self.parallel_loop(f"{iterations(product.batch)} * {panels}", "chunk", body)


def _tile_loop(body: list[str]) -> list[str]:
    return ["for (long tile = 0; tile < height; tile += TILE_ROWS) {", *indented(body), "}"]


def _stride(value: Expr, var: LoopVar) -> int:
    """The stride in memory of an operand along a loop; 0 if the operand is not a plain load."""
    return abs(value.data[1].coefficient(var)) if value.op == "load" else 0
