"""A stage with a matrix product in C++: row by row, or in blocks with packed operands and a tile of results in registers."""

from __future__ import annotations

from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.loops import Rows, indented, loop, nest, unflattened
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import LoopVar
from kernelpro.authors.playbook.ir.stages import MatrixProduct

_WIDEST = 32
"""Columns are padded to this, whatever the machine's panels are."""
_DEPTHS = (128, 256, 512)
_BLOCKS = (30, 60, 120, 240)


class Products(Rows):
    """The products of a row, or of a block of rows, are made first; then comes what any row is given."""

    def lines(self) -> list[str]:
        assert self.stage.product
        return (
            self._in_blocks(self.stage.product) if self.how.packed else self._row_by_row(self.stage.product)
        )

    def _value(self, value: Expr, names: Names) -> tuple[list[str], str]:
        lines = self.printer.statements([] if value.op in LEAVES else [value], names)
        return lines, self.printer.text(value, names)

    def _row_by_row(self, product: MatrixProduct) -> list[str]:
        kind, column, depth = arithmetic_type(product.left.dtype), product.column, product.depth
        before, a = self._value(product.left, {})
        inside, b = self._value(product.right, {})
        at = f"{product.name}[{column.name}]"
        made = [f"{kind} {product.name}[{column.extent}];"]
        if _step(product.right, column) == 1:
            made += nest((column,), [f"{at} = 0;"])
            update = nest((column,), [*inside, f"{at} += factor * {b};"], vector=self.how.lanes > 1)
            made += nest((depth,), [*before, f"const {kind} factor = {a};", *update])
        else:
            pragma = ["#pragma omp simd reduction(+ : dot)"] if self.how.lanes > 1 else []
            dot = [
                f"{kind} dot = 0;",
                *pragma,
                *nest((depth,), [*before, *inside, f"dot += {a} * {b};"]),
                f"{at} = dot;",
            ]
            made += nest((column,), dot)
        return self.over(self.stage.rows, "row", [*unflattened("row", self.stage.outer), *made, *self.row()])

    def _in_blocks(self, product: MatrixProduct) -> list[str]:
        self.kernel.blocked = True
        kind, name, row = arithmetic_type(product.left.dtype), product.name, self.stage.outer[-1]
        columns, depth = product.column.extent, product.depth.extent
        batches, panels, padded = (
            prod(v.extent for v in product.batch),
            f"panels({columns})",
            -(-columns // _WIDEST) * _WIDEST,
        )
        self.kernel.scratch[f"packed_{name}"] = (
            "float64" if kind == "double" else "float32",
            batches * depth * padded,
        )
        rows = self.kernel.tunable(f"BLOCK_M{self.place}", self.how.block_m, _BLOCKS)
        chunk = self.kernel.tunable(f"BLOCK_K{self.place}", self.how.block_k, _DEPTHS)
        blocks = f"(({row.extent} + {rows} - 1) / {rows})"
        body = [
            f"const long first = turn % {blocks} * {rows}, height = smaller(long({rows}), {row.extent} - first);"
        ]
        body += [f"const long batch = turn / {blocks};", *unflattened("batch", product.batch)]
        body += [
            f"static thread_local {kind} block[({rows} + HEIGHT) * {padded}], left[({rows} + HEIGHT) * {chunk}];"
        ]
        body += [f"for (long from = 0; from < {depth}; from += {chunk}) {{"]
        body += indented(
            [
                f"const long deep = smaller(long({chunk}), {depth} - from);",
                *self._pack_left(product, row, chunk),
            ]
        )
        tile = [
            f"multiply(left + tile * {chunk}, right, block + tile * {padded} + panel * WIDTH, deep, {padded}, from == 0);"
        ]
        along = [
            f"const {kind}* right = packed_{name} + ((batch * {panels} + panel) * {depth} + from) * WIDTH;"
        ]
        along += ["for (long tile = 0; tile < height; tile += HEIGHT) {", *indented(tile), "}"]
        body += indented(loop("panel", panels, along)) + ["}"]
        each = [
            f"const long {row.name} = first + r;",
            f"const {kind}* {name} = block + r * {padded};",
            *self.row(),
        ]
        body += loop("r", "height", each)
        return [*self._pack_right(product), *self.over(f"{batches} * {blocks}", "turn", body)]

    def _pack_left(self, product: MatrixProduct, row: LoopVar, chunk: str) -> list[str]:
        """The lines of a tile as columns; beyond the last row its values come again."""
        before, text = self._value(product.left, {})
        at = product.depth.name
        inner = [*before, f"left[tile * {chunk} + ({at} - from) * HEIGHT + r] = {text};"]
        lines = [f"const long {row.name} = smaller(first + tile + r, {row.extent - 1}L);"]
        lines += [f"for (long {at} = from; {at} < from + deep; ++{at}) {{", *indented(inner), "}"]
        return [
            "for (long tile = 0; tile < height; tile += HEIGHT) {",
            *indented(loop("r", "HEIGHT", lines)),
            "}",
        ]

    def _pack_right(self, product: MatrixProduct) -> list[str]:
        """Panels of a few columns, each as it is read; beyond the last column its values come again."""
        before, text = self._value(product.right, {})
        column, depth, panels = product.column, product.depth, f"panels({product.column.extent})"
        inner = [
            *before,
            f"packed_{product.name}[(turn * {depth.extent} + {depth.name}) * WIDTH + j] = {text};",
        ]
        place = f"const long {column.name} = smaller(turn % {panels} * WIDTH + j, {column.extent - 1}L);"
        body = [f"const long batch = turn / {panels};", *unflattened("batch", product.batch)]
        if _step(product.right, depth) == 1:
            body += loop("j", "WIDTH", [place, *nest((depth,), inner)])
        else:
            body += nest((depth,), loop("j", "WIDTH", [place, *inner]))
        return self.over(f"{prod(v.extent for v in product.batch)} * {panels}", "turn", body)


def _step(value: Expr, var: LoopVar) -> int:
    """How far apart in memory a plain operand's neighbours along a loop lie; 0 where there is no telling."""
    return abs(value.data[1].coefficient(var)) if value.op == "load" else 0


MICRO = """\
// A tile of results in registers: one column of the left operand times one line of the right one at a time.
#if defined(__AVX512F__)
constexpr int BYTES = 64, HEIGHT = 12, WIDTH = 32;
#elif defined(__AVX__)
constexpr int BYTES = 32, HEIGHT = 6, WIDTH = 16;
#else
constexpr int BYTES = 16, HEIGHT = 5, WIDTH = 16;
#endif
constexpr long panels(long columns) { return (columns + WIDTH - 1) / WIDTH; }
template <class T> struct Vector {
    typedef T type __attribute__((vector_size(BYTES), aligned(sizeof(T))));
};
template <class T>
static inline void multiply(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c,
                            long depth, long width, bool fresh) {
    typedef typename Vector<T>::type vector;
    constexpr int LANES = BYTES / sizeof(T), VECTORS = WIDTH / LANES;
    vector sum[HEIGHT][VECTORS];
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = fresh ? vector{} : *(const vector*)(c + r * width + v * LANES);
    for (long k = 0; k < depth; ++k) {
        vector line[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) line[v] = *(const vector*)(b + k * WIDTH + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < HEIGHT; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; ++v) sum[r][v] += line[v] * a[k * HEIGHT + r];
    }
#pragma GCC unroll 16
    for (int r = 0; r < HEIGHT; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) *(vector*)(c + r * width + v * LANES) = sum[r][v];
}
"""
