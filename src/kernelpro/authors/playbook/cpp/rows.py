"""Loop nests that process one row after another along its own loops, in vectors if the design has lanes."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.loop_nest import (
    CppKernel,
    LoopNest,
    cache_name,
    flat_index,
    indented,
    loop,
    nest,
    partial_type,
    unflattened,
)
from kernelpro.authors.playbook.cpp.syntax import accumulator_type, arithmetic_type, identity_element
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, LoopVar, iterations, variable
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.online_reductions import OnlineReduction, fuse_variance
from kernelpro.authors.playbook.schedule.passes import (
    RowPass,
    cached_before,
    choose_cached,
    loop_invariants,
    scans_of,
)

_CACHE_LINE = 16
"""Floats per cache line."""
_SHIFT_SAMPLE = 16
"""The mean of this many elements estimates the mean of a row."""
_LANES = (8, 16, 32, 64)
_TILES = (16, 32, 64)


class RowNest(LoopNest):
    """A stage row by row, or in tiles of rows and columns.

    An online variance computes the sum of squares about the mean of x in the pass that sums x. With the shift
    s (the mean of the row's first few elements), the pass computes the sum S and the sum of squares Q of x -
    s. The sum of squares about the mean is then Q - S * S / count. The shift avoids cancellation.
    """

    def __init__(self, kernel: CppKernel, stage: Stage, design: StageDesign, number: int):
        super().__init__(kernel, stage, design, number)
        self._variances: dict[str, OnlineReduction] = {}
        if design.online:
            self.passes, self._variances = fuse_variance(self.passes)
        self._shifted_sums = {variance.base.name for variance in self._variances.values()}

    def reduction_term(self, step: ReduceStep, names: Names) -> str:
        """What one element contributes; shifted in an online variance."""
        text = super().reduction_term(step, names)
        if step.name in self._variances:
            shifted = f"({text} - {self._variances[step.name].base.name}_shift)"
            return f"({shifted} * {shifted})"
        return f"({text} - {step.name}_shift)" if step.name in self._shifted_sums else text

    def lines(self) -> list[str]:
        """Write the loop nest."""
        outer = self.stage.outer
        if self.design.order == "tiles":
            return self._tiles(outer[:-1], outer[-1])
        if not outer and self._is_one_store_loop():
            body = self.element(self.passes[0], {}, "")
            return ["#pragma omp for simd schedule(static)", *nest(self.passes[0].loops, body)]
        body = self.row()
        if len(outer) == 1:
            return self.parallel_loop(outer[0].extent, outer[0].name, body)
        return self.parallel_loop(self.stage.rows, "row", [*unflattened("row", outer), *body])

    def _is_one_store_loop(self) -> bool:
        if len(self.passes) != 1 or self.stage.reductions:
            return False
        return bool(self.passes[0].loops) and not scans_of(self.passes[0].roots)

    def _tiles(self, lead: Loops, last: LoopVar) -> list[str]:
        """Square tiles of rows and columns, so that cache lines that cross rows are used completely while
        they are cached."""
        tile = self.kernel.tunable(f"TILE{self.number}", self.design.tile, _TILES)
        tiles = f"(({last.extent} + {tile} - 1) / {tile})"
        body = [f"const long block = chunk / {tiles};", *unflattened("block", lead)]
        body += [
            f"const long first = chunk % {tiles} * {tile}, end = smaller(first + {tile}, {last.extent}L);"
        ]
        for row_pass in self.passes:
            *rest, var = row_pass.loops
            columns = [
                f"const long stop = smaller(start + {tile}, {var.extent}L);",
                f"for (long {last.name} = first; {last.name} < end; ++{last.name}) {{",
                "#pragma omp simd",
                f"    for (long {var.name} = start; {var.name} < stop; ++{var.name}) {{",
                *indented(self.element(row_pass, {}, ""), 2),
                "    }",
                "}",
            ]
            across = [
                f"for (long start = 0; start < {var.extent}; start += {tile}) {{",
                *indented(columns),
                "}",
            ]
            body += nest(tuple(rest), across)
        return self.parallel_loop(f"{iterations(lead)} * {tiles}", "chunk", body)

    def row(self) -> list[str]:
        """The code of one row."""
        if self.design.cache_row:
            choose_cached(self.passes)
        names: Names = {}
        body: list[str] = []
        for position, row_pass in enumerate(self.passes):
            body += self._pass(position, row_pass, names)
        return body + self.add_totals(names)

    def _pass(self, position: int, row_pass: RowPass, names: Names) -> list[str]:
        index = flat_index(row_pass.loops)
        cached = {node: f"{cache_name(node)}[{index}]" for node in cached_before(self.passes, position)}
        lines = self.printer.statements(loop_invariants(row_pass.roots, set(row_pass.loops), cached), names)
        if not row_pass.loops:
            return lines + self._single_element(row_pass, names)
        scans, size = scans_of(row_pass.roots), iterations(row_pass.loops)
        lines += [f"{arithmetic_type(node.dtype)} {cache_name(node)}[{size}];" for node in row_pass.cached]
        if self.design.lanes > 1 and not scans and not row_pass.guards:
            prefetch = self.design.prefetch and position == len(self.passes) - 1
            return lines + self._vector_loops(row_pass, names | cached, prefetch)
        return lines + self._scalar_loops(row_pass, names | cached, scans)

    def _single_element(self, row_pass: RowPass, names: Names) -> list[str]:
        lines = self.assign(row_pass.roots, names)
        for step in row_pass.steps:
            if isinstance(step, StoreStep):
                lines.append(self.kernel.store(step, names))
            else:
                text = self.printer.text(step.value, names)
                lines.append(f"const {arithmetic_type(step.value.dtype)} {step.name} = {text};")
        return lines

    def _scalar_loops(self, row_pass: RowPass, names: Names, scans: list[Expr]) -> list[str]:
        lines = []
        for scan in scans:
            ctype = accumulator_type(scan.dtype)
            lines.append(f"{ctype} scan{scan.number} = {identity_element(scan.data[0], ctype)};")
        for r in row_pass.reductions:
            ctype = partial_type(r, row_pass)
            lines.append(f"{ctype} {r.name}_acc = {identity_element(r.kind, ctype)};")
        body = [f"if ({self._fails(guard)}) continue;" for guard in row_pass.guards]
        body += self.advance_scans(scans, names, "")
        lines += nest(row_pass.loops, [*body, *self.element(row_pass, names, "_acc")])
        for r in row_pass.reductions:
            lines.append(f"const {arithmetic_type(r.value.dtype)} {r.name} = {r.name}_acc;")
        return lines

    def _fails(self, guard: Guard) -> str:
        text = self.printer.index(guard.index)
        return f"{text} < 0 || {text} >= {guard.size}"

    def _vector_loops(self, row_pass: RowPass, names: Names, prefetch: bool) -> list[str]:
        """Vector loops. A reduction has one partial result per lane; they are combined after the loop."""
        reductions = row_pass.reductions
        *rest, var = row_pass.loops
        prefetches = self._prefetches(var) if prefetch else []
        if not reductions and not prefetches:
            return nest(row_pass.loops, self.element(row_pass, names, ""), simd=True)
        lanes = str(max(_LANES))
        if reductions:
            lanes = self.kernel.tunable(f"LANES{self.number}", self.design.lanes, _LANES)
        lines = []
        for r in reductions:
            if r.name in self._shifted_sums:
                lines += self._shift(r, row_pass, names)
            ctype = partial_type(r, row_pass, self.design.lanes)
            lines += [f"{ctype} {r.name}_partial[{lanes}];"]
            lines += [f"for (auto& value : {r.name}_partial) value = {identity_element(r.kind, ctype)};"]
        body = self.element(row_pass, dict(names), "_partial[j]")
        whole = f"{var.extent} / {lanes} * {lanes}"
        inner = [f"for (long i = 0; i < {whole}; i += {lanes}) {{"]
        if prefetches:
            header = f"for (long line = i; line < i + {lanes}; line += {_CACHE_LINE}) {{"
            inner += indented([header, *indented(prefetches), "}"])
        inner += ["#pragma omp simd"]
        inner += indented(loop("j", lanes, [f"const long {var.name} = i + j;", *body]))
        inner += ["}"]
        if var.extent % max(_LANES):
            remainder = [f"const long {var.name} = {whole} + j;", *body]
            inner += loop("j", f"{var.extent} % {lanes}", remainder)
        lines += nest(tuple(rest), inner)
        count = iterations(row_pass.loops)
        return lines + [line for r in reductions for line in self._combine_lanes(r, count)]

    def _shift(self, base: ReduceStep, row_pass: RowPass, names: Names) -> list[str]:
        """Statements that estimate the row's mean by the mean of its first elements: of several, so that one
        outlier does little harm."""
        *rest, var = row_pass.loops
        sample, name, own_names = min(_SHIFT_SAMPLE, var.extent), f"{base.name}_shift", dict(names)
        body = self.printer.statements([base.value], own_names)
        body += [f"{name} += {self.printer.text(base.value, own_names)};"]
        lines = [f"const long {other.name} = 0;" for other in rest] + loop(var.name, sample, body)
        return [f"float {name} = 0;", "{", *indented(lines), "}", f"{name} *= {1 / sample!r}f;"]

    def _combine_lanes(self, r: ReduceStep, count: int) -> list[str]:
        """Statements that combine the partial results of a reduction's lanes."""
        ctype, total = arithmetic_type(r.value.dtype), f"reduce_{r.kind}({r.name}_partial)"
        if r.name in self._shifted_sums:
            result = f"{r.name}_shifted + {count} * double({r.name}_shift)"
            return [f"const double {r.name}_shifted = {total};", f"const {ctype} {r.name} = {result};"]
        if r.name in self._variances:
            shifted = f"{self._variances[r.name].base.name}_shifted"
            return [f"const {ctype} {r.name} = larger({total} - {shifted} * {shifted} / {count}, 0.0);"]
        return [f"const {ctype} {r.name} = {total};"]

    def _prefetches(self, var: LoopVar) -> list[str]:
        """Prefetches of the next row, for every tensor that the first pass streams."""
        first = self.passes[0]
        if not self.stage.outer or var not in first.loops:
            return []
        last = self.stage.outer[-1]
        next_row = {last: variable(last) + 1, var: variable(LoopVar("line", var.extent))}
        streamed = {node.data for node in nodes_of(first.roots, "load") if _streams(node, var, last)}
        lines = []
        for tensor, index in sorted(streamed, key=repr):
            address = self.printer.load(tensor, self.printer.index(index.substitute(next_row)), "float32")
            lines.append(f"__builtin_prefetch(&{address});")
        return lines


def _streams(node: Expr, var: LoopVar, last: LoopVar) -> bool:
    """Whether a load is contiguous along the row, and reads other elements in the next row."""
    index: IndexExpr = node.data[1]
    return index.is_affine and index.coefficient(var) == 1 and index.coefficient(last) != 0
