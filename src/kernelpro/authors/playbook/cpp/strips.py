"""Loop nests that process strips of neighbouring rows in vectors, element by element: for rows whose elements
lie far apart in memory."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.loop_nest import LoopNest, indented, nest, partial_type, unflattened
from kernelpro.authors.playbook.cpp.syntax import accumulator_type, arithmetic_type, identity_element
from kernelpro.authors.playbook.ir.expressions import nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations
from kernelpro.authors.playbook.ir.stages import Guard
from kernelpro.authors.playbook.schedule.passes import EXPENSIVE_OPS, RowPass, loop_invariants, scans_of

STRIPS = (64, 128, 256, 512, 1024)


class StripNest(LoopNest):
    """A stage in strips of rows; the vector loop, with index j, runs over the rows of a strip."""

    def lines(self) -> list[str]:
        """Write the loop nest."""
        *lead, last = self.stage.outer
        choices = [width for width in STRIPS if width <= self.design.strip]
        strip = self.kernel.tunable(f"STRIP{self.number}", self.design.strip, choices)
        strips = f"(({last.extent} + {strip} - 1) / {strip})"
        body = [f"const long first = chunk % {strips} * {strip};"]
        body += [f"const long width = smaller(long({strip}), {last.extent} - first);"]
        if lead:
            body += [f"const long row = chunk / {strips};", *unflattened("row", tuple(lead))]
        names: Names = {node: f"{node.data}[j]" for node in nodes_of(self.stage.expressions, "row")}
        for row_pass in self.passes:
            body += self._pass(row_pass, names, last, strip)
        if self.stage.totals:
            body += self._row_loop(last, self.add_totals(dict(names)), simd=False)
        return self.parallel_loop(f"{iterations(lead)} * {strips}", "chunk", body)

    def _row_loop(
        self, last: LoopVar, body: list[str], start: str = "0", end: str = "width", simd: bool = True
    ) -> list[str]:
        """A loop over the rows of the strip."""
        return [
            *(["#pragma omp simd"] if simd else []),
            f"for (long j = {start}; j < {end}; ++j) {{",
            *indented([f"const long {last.name} = first + j;", *body]),
            "}",
        ]

    def _pass(self, row_pass: RowPass, names: Names, last: LoopVar, strip: str) -> list[str]:
        lines = self._invariants(row_pass, names, last, strip) if row_pass.loops else []
        scans = scans_of(row_pass.roots)
        accumulators = [(r.name, partial_type(r, row_pass), r.kind) for r in row_pass.reductions]
        accumulators += [(f"scan{s.number}", accumulator_type(s.dtype), s.data[0]) for s in scans]
        for name, ctype, kind in accumulators:
            lines += [f"{ctype} {name}[{strip}];"]
            lines += [f"for (auto& value : {name}) value = {identity_element(kind, ctype)};"]
        own_names = dict(names)
        body = [*self.advance_scans(scans, own_names, "[j]"), *self.element(row_pass, own_names, "[j]")]
        bounds, start, end = self._bounds(row_pass.guards, last)
        return lines + nest(row_pass.loops, [*bounds, *self._row_loop(last, body, start, end)])

    def _invariants(self, row_pass: RowPass, names: Names, last: LoopVar, strip: str) -> list[str]:
        """Statements before the pass that compute, for the whole strip, expensive values that are constant
        along a row."""
        lines: list[str] = []
        for node in loop_invariants(row_pass.roots, set(row_pass.loops), {}):
            if node not in names and nodes_of([node], "row", *EXPENSIVE_OPS):
                own_names, array = dict(names), f"invariant{node.number}"
                body = [*self.printer.statements([node], own_names), f"{array}[j] = {own_names[node]};"]
                lines += [f"{arithmetic_type(node.dtype)} {array}[{strip}];", *self._row_loop(last, body)]
                names[node] = f"{array}[j]"
        return lines

    def _bounds(self, guards: tuple[Guard, ...], last: LoopVar) -> tuple[list[str], str, str]:
        """The rows of the strip for which the guards hold: statements that compute them, and the start and
        end of the row loop."""
        lines: list[str] = []
        start, end = "0", "width"
        for guard in guards:
            factor = guard.index.coefficient(last)
            rest = IndexExpr(tuple(t for t in guard.index.terms if t[0] != last), guard.index.constant)
            text = self.printer.index(rest)
            if not factor:
                lines.append(f"if ({text} < 0 || {text} >= {guard.size}) continue;")
                continue
            start, end = "start", "end"
            lines.append(f"start = larger(start, ceil_div(-({text}), {factor}) - first);")
            lines.append(f"end = smaller(end, ceil_div({guard.size} - ({text}), {factor}) - first);")
        return (["long start = 0, end = width;", *lines] if start == "start" else lines), start, end
