"""Loop nests of a stage in C++: row by row, or in strips of neighbouring rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import CppPrinter, combine, arithmetic_type, identity_element, accumulator_type
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations, variable
from kernelpro.authors.playbook.ir.stages import Guard, Program, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.online_reductions import OnlineReduction, fuse_variance
from kernelpro.authors.playbook.schedule.passes import (
    EXPENSIVE_OPS,
    RowPass,
    cached_before,
    choose_cached,
    loop_invariants,
    scans_of,
    split_into_passes,
)

_LONG = 512
"""One chain of additions longer than this is made in double: in float its error shows when a few values are large."""
_LINE = 16
"""Floats of a line of memory."""
_FEW = 16
"""Elements that tell roughly where a row's values lie."""
_CLAUSES = {"sum": "+", "prod": "*", "max": "max", "min": "min"}
_LANES = (8, 16, 32, 64)
_TILES = (16, 32, 64)
STRIPS = (64, 128, 256, 512, 1024)


class Kernel:
    """What the stages of one program share."""

    def __init__(self, program: Program, printer: CppPrinter):
        self.printer = printer
        self._held = {tensor.name: tensor.dtype for tensor in program.tensors}
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.scratch: dict[str, tuple[str, int]] = {}
        """Memory that the kernel needs beside the program's tensors: type and size by name."""
        self.blocked = False
        """Whether some stage works in blocks of a product."""

    def tunable(self, name: str, value: int, values: Sequence[int]) -> str:
        """A constant of the kernel that may be searched."""
        self.tunables[name] = (value, sorted({value, *values}))
        return name

    def store(self, step: StoreStep, names: Names) -> str:
        index, text = self.printer.index(step.index, names), self.printer.text(step.value, names)
        return self.printer.store(step.tensor, index, self._held[step.tensor], text, step.value.dtype)


class Nest(ABC):
    def __init__(self, kernel: Kernel, stage: Stage, how: StageDesign, place: int):
        self.kernel, self.printer, self.stage, self.how, self.place = (
            kernel,
            kernel.printer,
            stage,
            how,
            place,
        )
        self.passes = split_into_passes(stage)

    @abstractmethod
    def lines(self) -> list[str]: ...

    def over(self, count: int | str, name: str, body: list[str]) -> list[str]:
        """The loop that threads share."""
        totals = "".join(f" reduction({_CLAUSES[t.kind]} : {t.name})" for t in self.stage.totals)
        if not self.how.parallel or count == 1:
            return ["#pragma omp single", *loop(name, count, body)]
        return [f"#pragma omp for schedule({self.how.schedule}){totals}", *loop(name, count, body)]

    def add_totals(self, names: Names) -> list[str]:
        lines = self.printer.statements(
            [t.value for t in self.stage.totals if t.value.op not in LEAVES], names
        )
        for total in self.stage.totals:
            value = f"{accumulator_type(total.value.dtype)}({self.printer.text(total.value, names)})"
            lines.append(f"{total.name} = {combine(total.kind, total.name, value)};")
        return lines

    def element(self, one: RowPass, names: Names, into: str) -> list[str]:
        """What is done for one element of a pass; a reduction goes to the variable of its name with `into` behind it."""
        lines = self.printer.statements(
            [*one.cached, *(s.value for s in one.steps if s.value.op not in LEAVES)], names
        )
        lines += [f"kept{node.number}[{flat(one.loops)}] = {names[node]};" for node in one.cached]
        for step in one.steps:
            if isinstance(step, StoreStep):
                lines.append(self.kernel.store(step, names))
            else:
                lines.append(
                    f"{step.name}{into} = {combine(step.kind, step.name + into, self.term(step, names))};"
                )
        return lines

    def term(self, step: ReduceStep, names: Names) -> str:
        """What an element adds to a reduction."""
        return self.printer.text(step.value, names)

    def running(self, scans: Iterable[Expr], names: Names, at: str) -> list[str]:
        """Running sums take one more element."""
        lines = []
        for scan in scans:
            lines += self.printer.statements([arg for arg in scan.args if arg.op not in LEAVES], names)
            name = f"s{scan.number}{at}"
            value = f"{accumulator_type(scan.dtype)}({self.printer.text(scan.args[0], names)})"
            lines.append(f"{name} = {combine(scan.data[0], name, value)};")
            names[scan] = f"{arithmetic_type(scan.dtype)}({name})"
        return lines


class Rows(Nest):
    """Row by row; within a row along its loops, in vectors where there are lanes.

    Joined, the sum of squares about the mean of x is made in the pass that sums x up: of x - s, with s the mean of the row's first
    few elements, both the sum S and the sum of squares Q; about the mean they are Q - S * S / count.
    """

    def __init__(self, kernel: Kernel, stage: Stage, how: StageDesign, place: int):
        super().__init__(kernel, stage, how, place)
        self._followers: dict[str, OnlineReduction] = {}
        if how.online:
            self.passes, self._followers = fuse_variance(self.passes)
        self._bases = {follower.base.name for follower in self._followers.values()}

    def term(self, step: ReduceStep, names: Names) -> str:
        text = super().term(step, names)
        if step.name in self._followers:
            off = f"({text} - {self._followers[step.name].base.name}_near)"
            return f"({off} * {off})"
        return f"({text} - {step.name}_near)" if step.name in self._bases else text

    def lines(self) -> list[str]:
        outer = self.stage.outer
        if self.how.order == "tiles":
            return self._in_tiles(outer[:-1], outer[-1])
        if not outer and self._only_stores():
            return [
                "#pragma omp for simd schedule(static)",
                *nest(self.passes[0].loops, self.element(self.passes[0], {}, "")),
            ]
        body = self.row()
        if len(outer) == 1:
            return self.over(outer[0].extent, outer[0].name, body)
        return self.over(self.stage.rows, "row", [*unflattened("row", outer), *body])

    def _only_stores(self) -> bool:
        roots = [step.value for step in self.stage.steps]
        return (
            len(self.passes) == 1
            and bool(self.passes[0].loops)
            and not self.stage.reductions
            and not scans_of(roots)
        )

    def _in_tiles(self, lead: tuple[LoopVar, ...], last: LoopVar) -> list[str]:
        """Squares of rows and columns, so that lines of memory that go across the rows are used up while they are in cache."""
        tile = self.kernel.tunable(f"TILE{self.place}", self.how.tile, _TILES)
        blocks = f"(({last.extent} + {tile} - 1) / {tile})"
        body = [f"const long block = turn / {blocks};", *unflattened("block", lead)]
        body += [
            f"const long first = turn % {blocks} * {tile}, end = smaller(first + {tile}, {last.extent}L);"
        ]
        for one in self.passes:
            names: Names = {}
            *rest, var = one.loops
            inside = [
                f"const long stop = smaller(start + {tile}, {var.extent}L);",
                f"for (long {last.name} = first; {last.name} < end; ++{last.name}) {{",
            ]
            inside += [
                "#pragma omp simd",
                f"    for (long {var.name} = start; {var.name} < stop; ++{var.name}) {{",
            ]
            inside += [*indented(self.element(one, names, ""), 2), "    }", "}"]
            across = [
                f"for (long start = 0; start < {var.extent}; start += {tile}) {{",
                *indented(inside),
                "}",
            ]
            body += nest(tuple(rest), across)
        return self.over(f"{prod(v.extent for v in lead)} * {blocks}", "turn", body)

    def row(self) -> list[str]:
        """All that is done for one row."""
        if self.how.cache_row:
            choose_cached(self.passes)
        names: Names = {}
        body: list[str] = []
        for number, one in enumerate(self.passes):
            body += self._pass(number, one, names)
        return body + self.add_totals(names)

    def _pass(self, number: int, one: RowPass, names: Names) -> list[str]:
        inner = set(one.loops)
        roots = [step.value for step in one.steps]
        kept = {node: f"kept{node.number}[{flat(one.loops)}]" for node in cached_before(self.passes, number)}
        lines = self.printer.statements(loop_invariants(roots, inner, kept), names)
        if not one.loops:
            return lines + self._once(one, names)
        scans = scans_of(roots)
        lines += [f"{arithmetic_type(node.dtype)} kept{node.number}[{iterations(one.loops)}];" for node in one.cached]
        if self.how.lanes > 1 and not scans and not one.guards:
            return lines + self._in_vectors(
                one, names | kept, fetch=self.how.prefetch and number == len(self.passes) - 1
            )
        lines += [
            f"{accumulator_type(scan.dtype)} s{scan.number} = {identity_element(scan.data[0], accumulator_type(scan.dtype))};"
            for scan in scans
        ]
        lines += [f"{_held(r, one)} {r.name}_sum = {identity_element(r.kind, _held(r, one))};" for r in _reduces(one)]
        own = names | kept
        body = [f"if ({self._outside(guard)}) continue;" for guard in one.guards]
        body += self.running(scans, own, "")
        lines += nest(one.loops, [*body, *self.element(one, own, "_sum")])
        return lines + [f"const {arithmetic_type(r.value.dtype)} {r.name} = {r.name}_sum;" for r in _reduces(one)]

    def _once(self, one: RowPass, names: Names) -> list[str]:
        lines = self.printer.statements([s.value for s in one.steps if s.value.op not in LEAVES], names)
        for step in one.steps:
            if isinstance(step, StoreStep):
                lines.append(self.kernel.store(step, names))
            else:
                lines.append(
                    f"const {arithmetic_type(step.value.dtype)} {step.name} = {self.printer.text(step.value, names)};"
                )
        return lines

    def _outside(self, guard: Guard) -> str:
        text = self.printer.index(guard.index)
        return f"{text} < 0 || {text} >= {guard.size}"

    def _in_vectors(self, one: RowPass, names: Names, fetch: bool) -> list[str]:
        """Stores: a vector loop. Reductions: as many partial results as there are lanes, put together behind the loop."""
        reduces = _reduces(one)
        *rest, var = one.loops
        ahead = self._fetched(var) if fetch else []
        if not reduces and not ahead:
            return nest(one.loops, self.element(one, names, ""), vector=True)
        lanes = (
            self.kernel.tunable(f"LANES{self.place}", self.how.lanes, _LANES) if reduces else str(max(_LANES))
        )
        lines = []
        for r in reduces:
            if r.name in self._bases:
                lines += self._near(r, one, names)
            kind = _held(r, one, self.how.lanes)
            lines += [
                f"{kind} {r.name}_part[{lanes}];",
                f"for (auto& part : {r.name}_part) part = {identity_element(r.kind, kind)};",
            ]
        body = self.element(one, dict(names), "_part[j]")
        whole = f"{var.extent} / {lanes} * {lanes}"
        inner = [f"for (long i = 0; i < {whole}; i += {lanes}) {{"]
        if ahead:
            inner += indented(
                [f"for (long line = i; line < i + {lanes}; line += {_LINE}) {{", *indented(ahead), "}"]
            )
        inner += ["#pragma omp simd"]
        inner += indented(loop("j", lanes, [f"const long {var.name} = i + j;", *body]))
        inner += ["}"]
        if var.extent % max(_LANES):
            inner += loop("j", f"{var.extent} % {lanes}", [f"const long {var.name} = {whole} + j;", *body])
        lines += nest(tuple(rest), inner)
        return lines + [line for r in reduces for line in self._concluded(r, iterations(one.loops))]

    def _near(self, base: ReduceStep, one: RowPass, names: Names) -> list[str]:
        """A number near the row's mean: that of its first few elements, so that one that sticks out does little harm."""
        *rest, var = one.loops
        few, name, own = min(_FEW, var.extent), f"{base.name}_near", dict(names)
        body = [
            *self.printer.statements([base.value], own),
            f"{name} += {self.printer.text(base.value, own)};",
        ]
        lines = [f"const long {other.name} = 0;" for other in rest] + loop(var.name, few, body)
        return [f"float {name} = 0;", "{", *indented(lines), "}", f"{name} *= {1 / few!r}f;"]

    def _concluded(self, r: ReduceStep, count: int) -> list[str]:
        """A reduction's value from its partial results."""
        kind, total = arithmetic_type(r.value.dtype), f"{r.kind}_of({r.name}_part)"
        if r.name in self._bases:
            mean = f"{r.name}_off + {count} * double({r.name}_near)"
            return [f"const double {r.name}_off = {total};", f"const {kind} {r.name} = {mean};"]
        if r.name in self._followers:
            off = f"{self._followers[r.name].base.name}_off"
            return [f"const {kind} {r.name} = larger({total} - {off} * {off} / {count}, 0.0);"]
        return [f"const {kind} {r.name} = {total};"]

    def _fetched(self, var: LoopVar) -> list[str]:
        """The next row's part of every tensor that is read along the row first."""
        one = self.passes[0]
        if not self.stage.outer or var not in one.loops:
            return []
        last = self.stage.outer[-1]
        new = {last: variable(last) + 1, var: variable(LoopVar("line", var.extent))}
        found = {
            node.data
            for step in one.steps
            for node in step.value.walk()
            if node.op == "load" and _streams(node, var, last)
        }
        along = [
            (name, index.substitute(new)) for name, index in sorted(found, key=repr)
        ]
        return [
            f"__builtin_prefetch(&{self.printer.load(name, self.printer.index(index), 'float32')});"
            for name, index in along
        ]


class Strips(Nest):
    """Neighbouring rows side by side in vectors, element after element: for rows whose elements lie far apart."""

    def lines(self) -> list[str]:
        *lead, last = self.stage.outer
        strip = self.kernel.tunable(
            f"STRIP{self.place}", self.how.strip, [w for w in STRIPS if w <= self.how.strip]
        )
        names: Names = {}
        body = [f"const long first = turn % (({last.extent} + {strip} - 1) / {strip}) * {strip};"]
        body += [f"const long width = smaller(long({strip}), {last.extent} - first);"]
        if lead:
            body += [
                f"const long row = turn / (({last.extent} + {strip} - 1) / {strip});",
                *unflattened("row", tuple(lead)),
            ]
        for node in self._rows():
            names[node] = f"{node.data}[j]"
        for one in self.passes:
            body += self._pass(one, names, last, strip)
        if self.stage.totals:
            body += self._along(last, self.add_totals(dict(names)), vector=False)
        turns = f"{prod(v.extent for v in lead)} * (({last.extent} + {strip} - 1) / {strip})"
        return self.over(turns, "turn", body)

    def _rows(self) -> set[Expr]:
        roots = [s.value for s in self.stage.steps] + [t.value for t in self.stage.totals]
        return {node for root in roots for node in root.walk() if node.op == "row"}

    def _along(
        self, last: LoopVar, body: list[str], start: str = "0", end: str = "width", vector: bool = True
    ) -> list[str]:
        """Over the rows of the strip."""
        pragma = ["#pragma omp simd"] if vector else []
        return [
            *pragma,
            f"for (long j = {start}; j < {end}; ++j) {{",
            *indented([f"const long {last.name} = first + j;", *body]),
            "}",
        ]

    def _pass(self, one: RowPass, names: Names, last: LoopVar, strip: str) -> list[str]:
        roots = [step.value for step in one.steps]
        lines = self._numbers(one, names, last, strip) if one.loops else []
        scans = scans_of(roots)
        arrays = [(r.name, _held(r, one), r.kind) for r in _reduces(one)]
        arrays += [(f"s{s.number}", accumulator_type(s.dtype), s.data[0]) for s in scans]
        for name, kind, how in arrays:
            lines += [f"{kind} {name}[{strip}];", f"for (auto& part : {name}) part = {identity_element(how, kind)};"]
        own = dict(names)
        body = [*self.running(scans, own, "[j]"), *self.element(one, own, "[j]")]
        bounds, start, end = self._bounds(one.guards, last)
        return lines + nest(one.loops, [*bounds, *self._along(last, body, start, end)])

    def _numbers(self, one: RowPass, names: Names, last: LoopVar, strip: str) -> list[str]:
        """What a row needs of its own numbers, worked out for the whole strip before the pass."""
        lines: list[str] = []
        for node in loop_invariants([step.value for step in one.steps], set(one.loops), {}):
            if node not in names and any(
                inner.op in EXPENSIVE_OPS or inner.op == "row" for inner in node.walk()
            ):
                own = dict(names)
                body = [*self.printer.statements([node], own), f"h{node.number}[j] = {own[node]};"]
                lines += [f"{arithmetic_type(node.dtype)} h{node.number}[{strip}];", *self._along(last, body)]
                names[node] = f"h{node.number}[j]"
        return lines

    def _bounds(self, guards: tuple[Guard, ...], last: LoopVar) -> tuple[list[str], str, str]:
        """Which rows of the strip have the element: lines to find out, and where they start and end."""
        lines: list[str] = []
        start, end = "0", "width"
        for guard in guards:
            rest, factor = _without(guard.index, last)
            text = self.printer.index(rest)
            if not factor:
                lines.append(f"if ({text} < 0 || {text} >= {guard.size}) continue;")
                continue
            start, end = "start", "end"
            lines.append(f"start = larger(start, up(-({text}), {factor}) - first);")
            lines.append(f"end = smaller(end, up({guard.size} - ({text}), {factor}) - first);")
        return (["long start = 0, end = width;", *lines] if start == "start" else lines), start, end


# --- small parts -------------------------------------------------------------------------------------------


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    return [line if line.startswith("#") else "    " * depth + line for line in lines]


def loop(name: str, count: int | str, body: list[str]) -> list[str]:
    return [f"for (long {name} = 0; {name} < {count}; ++{name}) {{", *indented(body), "}"]


def nest(loops: tuple[LoopVar, ...], body: list[str], vector: bool = False) -> list[str]:
    for place, var in enumerate(reversed(loops)):
        body = [*(["#pragma omp simd"] if vector and not place else []), *loop(var.name, var.extent, body)]
    return body


def flat(loops: tuple[LoopVar, ...]) -> str:
    text = ""
    for var in loops:
        text = f"({text}) * {var.extent} + {var.name}" if text else var.name
    return text


def unflattened(name: str, loops: tuple[LoopVar, ...]) -> list[str]:
    """The variables of several loops from the number of the turn."""
    lines, stride = [], 1
    for var in reversed(loops):
        lines.append(f"const long {var.name} = {name} / {stride} % {var.extent};")
        stride *= var.extent
    return lines


def _held(step: ReduceStep, one: RowPass, lanes: int = 1) -> str:
    """The type of a reduction's partial results, of which there are so many."""
    kind = arithmetic_type(step.value.dtype)
    long = iterations(one.loops) > _LONG * lanes and step.kind in ("sum", "prod") and not step.guards
    return "double" if kind == "float" and long else kind


def _reduces(one: RowPass) -> list[ReduceStep]:
    return [step for step in one.steps if isinstance(step, ReduceStep)]


def _streams(node: Expr, var: LoopVar, last: LoopVar) -> bool:
    """Whether a load goes along the row, and on to another place with the next row."""
    index: IndexExpr = node.data[1]
    return index.is_affine and index.coefficient(var) == 1 and index.coefficient(last) != 0


def _without(index: IndexExpr, var: LoopVar) -> tuple[IndexExpr, int]:
    """The index without its term in `var`, and that term's factor."""
    return IndexExpr(tuple((a, c) for a, c in index.terms if a != var), index.constant), index.coefficient(
        var
    )
