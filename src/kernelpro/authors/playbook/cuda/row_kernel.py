"""Stages with rows in CUDA: threads side by side along a row, or along neighbouring rows.

A block takes several rows, and `LANES` threads share each of them. In `Rows` the threads of a row are neighbours, and a
piece lies along the row; in `Columns` neighbours have neighbouring rows, and a piece lies across them. Everything else is
the same: all passes of the stage in one kernel, or, where several blocks share a row, a kernel for each pass, which
begins with joining the parts that the blocks of earlier passes have left.

Rows that are not there (the last block may have too many) are the last row once more: their threads compute and store what
others store as well, so that nobody leaves before a barrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, combined, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, CudaSourceBuilder, nodes_to_compute, size
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants, choose_cached, cached_before
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep

_MAX_CACHE_REGISTERS = 80
"""Numbers that a thread keeps from pass to pass, at most."""
_MAX_CACHE_BYTES = 96 * 1024
"""Bytes of shared memory for the same: two blocks find room on an SM of 228 KB."""
_MAX_LOADS_IN_FLIGHT = 32
"""Numbers that a thread asks for before it uses the first, where the row is not kept."""
_MAX_UNROLLED_WINDOW = 64
"""Turns of a window that are written out one by one."""


class RowKernel(ABC):
    """One kernel: some passes of a stage over its rows."""

    row_suffix: str
    """What is appended to the names of a row's numbers."""
    rows_per_pack: int
    """Rows of a piece."""

    def __init__(
        self,
        writing: CudaSourceBuilder,
        stage: Stage,
        design: StageDesign,
        number: int,
        passes: list[RowPass],
        split: str = "1",
        partials: Sequence[ReduceStep] = (),
        partial_count: str = "",
        tuned: bool = True,
    ):
        self.builder, self.printer, self.stage, self.design, self.number = (
            writing,
            writing.printer,
            stage,
            design,
            number,
        )
        self.passes, self.split, self.partials, self.partial_count, self.tuned = (
            passes,
            split,
            list(partials),
            partial_count or split,
            tuned,
        )
        """split: blocks that share a row here; shares: those that did so before, and left their parts of `known`."""
        self.cached: dict[Expr, str] = {}
        self.in_registers = False
        self.shared_sizes: list[str] = []
        self.threads = self.tunable("THREADS", design.threads, 64, 1024)

    def tunable(self, name: str, value: int, least: int, most: int) -> str:
        return self.builder.tunable(f"{name}{self.number}", value, least, most) if self.tuned else str(value)

    # --- how threads lie ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def grid(self) -> str:
        """Blocks for all rows."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads of a row, as designed."""

    @property
    def rows_per_block(self) -> int:
        return self.design.threads // self.lanes * self.rows_per_pack

    @abstractmethod
    def header(self) -> list[str]:
        """Lines that name `LANES`, `lane`, `row`, and `live`: whether there is such a row."""

    @abstractmethod
    def vector(self, one: RowPass) -> int:
        """Elements of a piece."""

    @abstractmethod
    def loop_indices(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """Where a piece of a pass lies; without one: where the row does."""

    @abstractmethod
    def reduce_lanes(self, step: ReduceStep) -> list[str]:
        """From every lane's part of a number to the number, for all lanes."""

    @abstractmethod
    def emit_scan(self, turns: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """The pass with running sums or products."""

    @abstractmethod
    def shared_cache(self, node: Expr, count: int) -> tuple[str, str, str]:
        """A place in shared memory for a kept value: its declaration, its size in numbers, and how it is called."""

    # --- the kernel --------------------------------------------------------------------------------------------

    def write(self, name: str, max_split: int = 0) -> None:
        """`parts`: the most blocks that may share a row."""
        self.builder.begin_kernel()
        if self.design.cache_row and not self.partials and not max_split:
            self._plan_cache()
        names: Names = {}
        body = [line for step in self._needed_partials() for line in self._combine_partials(step)]
        for number, one in enumerate(self.passes):
            body += self._emit_pass(number, one, names)
            for step in (s for s in one.steps if isinstance(s, ReduceStep) and max_split):
                body += self._store_partial(step, max_split)
        if not max_split:
            body += self._emit_totals(names)
        if self.shared_sizes:
            body.insert(0, "extern __shared__ uint4 memory[];")
        memory = f"4 * ({' + '.join(self.shared_sizes)})" if self.shared_sizes else "0"
        blocks = self.grid if self.split == "1" else f"{self.grid} * {self.split}"
        self.builder.add_kernel(name, [*self.header(), *body], blocks, self.threads, memory)

    def bind_printer(self, one: RowPass | None = None) -> None:
        self.printer.loop_indices, self.printer.row_suffix = self.loop_indices(one), self.row_suffix

    def per_row(self, body: list[str]) -> list[str]:
        """For each row of the thread."""
        if not self.row_suffix:
            return body
        return ["#pragma unroll", f"for (int j = 0; j < {self.rows_per_pack}; ++j) {{", *indented(body), "}"]

    @property
    def row_index(self) -> str:
        return f"row * {self.rows_per_pack} + j" if self.row_suffix else "row"

    def declare(self, kind: str, name: str) -> str:
        return f"{kind} {name}[{self.rows_per_pack}];" if self.row_suffix else f"{kind} {name};"

    def _needed_partials(self) -> list[ReduceStep]:
        roots = [step.value for one in self.passes for step in one.steps]
        roots += [total.value for total in self.stage.totals] if self.split == "1" else []
        names = {node.data for root in roots for node in root.walk() if node.op == "row"}
        return [step for step in self.partials if step.name in names]

    def _combine_partials(self, step: ReduceStep) -> list[str]:
        """A number of which several blocks have left their parts."""
        kind, name = arithmetic_type(step.value.dtype), f"{step.name}{self.row_suffix}"
        part = f"part_{step.name}[s * {self.stage.rows} + {self.row_index}]"
        body = [f"{name} = {identity(step.kind, kind)};"]
        body += [f"for (int s = 0; s < {self.partial_count}; ++s) {name} = {combined(step.kind, name, part)};"]
        return [self.declare(kind, step.name), *self.per_row(body)]

    def _store_partial(self, step: ReduceStep, max_split: int) -> list[str]:
        name = self.builder.add_temporary(f"part_{step.name}", max_split * self.stage.rows, step.value.dtype)
        self.builder.written.add(name)
        text = f"{name}[share * {self.stage.rows} + {self.row_index}] = {step.name}{self.row_suffix};"
        return ["if (lane == 0) {", *indented(self.per_row([text])), "}"]

    def _emit_totals(self, names: Names) -> list[str]:
        lines: list[str] = []
        for total in self.stage.totals:
            kind, own = arithmetic_type(total.value.dtype), dict(names)
            part = self.builder.add_temporary(f"part_{total.name}", self.stage.rows, total.value.dtype)
            self.builder.written.add(part)
            self.bind_printer()
            inner = self.printer.statements([total.value] if total.value.op not in LEAVES else [], own)
            inner += [
                f"{total.name} = {combined(total.kind, total.name, f'{kind}({self.printer.text(total.value, own)})')};"
            ]
            lines += [f"__shared__ {kind} warps_{total.name}[({self.threads} + 31) / 32];"]
            lines += [f"{kind} {total.name} = {identity(total.kind, kind)};"]
            lines += ["if (live && lane == 0) {", *indented(self.per_row(inner)), "}"]
            lines += [
                f"{total.name} = joined<{REDUCE_OPERATORS[total.kind]}, {self.threads}>({total.name}, warps_{total.name});"
            ]
            lines += [f"if (threadIdx.x == 0) {part}[blockIdx.x] = {total.name};"]
        return lines

    # --- passes ------------------------------------------------------------------------------------------------

    def _emit_pass(self, number: int, one: RowPass, names: Names) -> list[str]:
        self.bind_printer()
        roots = [step.value for step in one.steps]
        before = cached_before(self.passes, number)
        lines = [] if one.guards else self._emit_invariants(loop_invariants(roots, set(one.loops), before), names)
        if not one.loops:
            return lines + self._emit_row_steps(one, names)
        lines += [f"constexpr int COUNT{number} = ({self._packs(one)} + SPAN - 1) / SPAN;"]
        lines += self._declare_cache(one, number)
        turns = self._thread_loop(number, one, before)
        if turns.unroll != turns.iterations:
            lines += [
                f"constexpr int AHEAD{number} = COUNT{number} < {self._unroll_limit(one)} ? COUNT{number} : {self._unroll_limit(one)};"
            ]
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        for step in reduces:
            kind = arithmetic_type(step.value.dtype)
            lines.append(self.declare(kind, f"{step.name}_part"))
            lines += self.per_row([f"{step.name}_part{self.row_suffix} = {identity(step.kind, kind)};"])
        scans = scans_of(one)
        lines += self.emit_scan(turns, scans, names) if scans else turns.emit(names)
        return lines + [line for step in reduces for line in self.reduce_lanes(step)]

    def _emit_row_steps(self, one: RowPass, names: Names) -> list[str]:
        """Steps that are done once a row: numbers by all its lanes, stores by the first."""
        lines, own = list[str](), dict(names)
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        inner = self.printer.statements([step.value for step in reduces if step.value.op not in LEAVES], own)
        inner += [f"{step.name}{self.row_suffix} = {self.printer.text(step.value, own)};" for step in reduces]
        if reduces:
            lines += [self.declare(arithmetic_type(step.value.dtype), step.name) for step in reduces]
            lines += self.per_row(inner) if self.row_suffix else ["{", *indented(inner), "}"]
        stores = RowPass((), [step for step in one.steps if isinstance(step, StoreStep)])
        if stores.steps:
            turns = ThreadLoop(
                self.builder,
                stores,
                self.rows_per_pack,
                self.loop_indices(None),
                "true",
                "true",
                (),
                "1",
                "1",
                self.row_suffix,
            )
            lines += ["if (lane == 0) {", *indented(turns.emit_pack(dict(names))), "}"]
        return lines

    def _emit_invariants(self, nodes: list[Expr], names: Names) -> list[str]:
        """What is the same for the whole row, computed before it is gone through."""
        if not self.row_suffix:
            return self.printer.statements(nodes, names)
        lines: list[str] = []
        for node in nodes:
            if node in names:
                continue
            own = dict(names)
            body = self.printer.statements([node], own)
            lines += [self.declare(arithmetic_type(node.dtype), f"h{node.number}")]
            lines += self.per_row([*body, f"h{node.number}[j] = {self.printer.text(node, own)};"])
            names[node] = f"h{node.number}[j]"
        return lines

    def _packs(self, one: RowPass) -> int:
        return size(one.loops) // (1 if self.row_suffix else self.vector(one))

    def _thread_loop(self, number: int, one: RowPass, before: set[Expr]) -> ThreadLoop:
        count, pieces = f"COUNT{number}", self._packs(one)
        together = (self.in_registers and (one.cached or before)) or (one.guards and pieces <= _MAX_UNROLLED_WINDOW)
        ahead = count if together else f"AHEAD{number}"
        return ThreadLoop(
            self.builder,
            one,
            self.vector(one),
            self.loop_indices(one),
            always_in_bounds=f"({pieces} % SPAN == 0 && {count} % {ahead} == 0)",
            in_bounds=f"at < {pieces}",
            index_lines=["const Int at = (c + u) * SPAN + start;"],
            iterations=count,
            unroll=ahead,
            row_suffix=self.row_suffix,
            cached={node: self.cached[node] for node in {*before, *one.cached}},
        )

    def _unroll_limit(self, one: RowPass) -> int:
        loads = {
            node
            for step in one.steps
            for node in step.value.walk()
            if node.op == "load" and node.variables & set(one.loops)
        }
        return max(1, _MAX_LOADS_IN_FLIGHT // (self.vector(one) * max(1, len(loads))))

    # --- what is kept between passes ---------------------------------------------------------------------------

    def _plan_cache(self) -> None:
        """In registers if there is room, else in shared memory, else nowhere."""
        choose_cached(self.passes)
        _cache_loads(self.passes, self.builder)
        each = [(node, one) for one in self.passes for node in one.cached]
        held = sum(-(-self._packs(one) // self.lanes) * self.vector(one) for _, one in each)
        self.in_registers = held <= _MAX_CACHE_REGISTERS
        fits = sum(size(one.loops) for _, one in each) * 4 * self.rows_per_block <= _MAX_CACHE_BYTES and all(
            arithmetic_type(n.dtype) == "float" for n, _ in each
        )
        if not self.in_registers and not fits:
            for one in self.passes:
                one.cached.clear()

    def _declare_cache(self, one: RowPass, number: int) -> list[str]:
        lines = []
        for node in one.cached:
            if self.in_registers:
                lines += [f"{arithmetic_type(node.dtype)} kept{node.number}[COUNT{number}][{self.vector(one)}];"]
                self.cached[node] = f"kept{node.number}[u][j]"
                continue
            line, numbers, self.cached[node] = self.shared_cache(node, self._packs(one) * self.vector(one))
            lines += [line]
            self.shared_sizes.append(numbers)
        return lines


def scans_of(one: RowPass) -> list[Expr]:
    found = {node for step in one.steps for node in step.value.walk() if node.op == "scan"}
    return sorted(found, key=lambda node: node.number)


def _cache_loads(made: list[RowPass], writing: CudaSourceBuilder) -> None:
    """What a later pass would load again is kept by the first that loads it."""
    for place, later in enumerate(made):
        kept = dict.fromkeys(cached_before(made, place), "")
        for node in sorted(nodes_to_compute([step.value for step in later.steps], kept), key=lambda node: node.number):
            if node.op != "load" or not node.variables & set(later.loops):
                continue
            for number, first in enumerate(made[:place]):
                own = dict.fromkeys(cached_before(made, number), "")
                if (
                    first.loops == later.loops
                    and not first.guards
                    and node in set(nodes_to_compute([s.value for s in first.steps], own))
                ):
                    first.cached.append(node)
                    break
