"""Kernels for the rows of a stage: reductions, scans, and the stores that depend on them.

A block processes several rows, and `LANES` threads share each row. The two thread layouts differ in which
threads those are, and in whether a pack lies along the row (along_rows.py) or across neighbouring rows
(across_rows.py). One kernel runs all passes of the stage. If several blocks share a row (split), each pass is
a kernel of its own, which first combines the partial results that earlier kernels have stored.

Out-of-range rows are clamped to the last row so that all threads reach the barriers. Their threads compute
and store the same values as the threads of the last row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, combine, identity_element, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, nodes_to_compute
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import (
    RowPass,
    cached_before,
    choose_cached,
    loop_invariants,
    scans_of,
)

_MAX_CACHE_REGISTERS = 80
"""Most values that a thread caches in registers between passes."""
_MAX_CACHE_BYTES = 96 * 1024
"""Most shared memory per block for cached values: two such blocks fit on an SM with 228 KB."""
_MAX_LOADS_IN_FLIGHT = 32
"""Most elements that a thread loads before it uses the first one, unless registers cache the row."""
_MAX_UNROLLED_WINDOW = 64
"""Loops over windows of up to this many packs are unrolled completely."""


class RowKernel(ABC):
    """One kernel, which runs some or all passes of a stage over its rows."""

    row_suffix: str
    """Appended to the names of per-row values: `[j]` where a pack spans several rows."""
    rows_per_pack: int

    def __init__(
        self,
        builder: CudaSourceBuilder,
        stage: Stage,
        design: StageDesign,
        number: int,
        passes: list[RowPass],
        split: str = "1",
        partials: Sequence[ReduceStep] = (),
        partial_count: str = "",
        tuned: bool = True,
    ):
        """`split`: blocks that share a row in this kernel. `partials`: reductions for which earlier kernels
        have stored `partial_count` partial results (default: `split`). `tuned`: whether sizes are tunables.
        """
        self.builder, self.printer = builder, builder.printer
        self.stage, self.design, self.number, self.passes = stage, design, number, passes
        self.split, self.partials, self.partial_count = split, list(partials), partial_count or split
        self.tuned = tuned
        self.cached: dict[Expr, str] = {}
        """Cached values, each with the text of its storage."""
        self.in_registers = False
        """Whether cached values are in registers, not in shared memory."""
        self.shared_sizes: list[str] = []
        """Sizes of the arrays in dynamic shared memory, in floats."""
        self.threads = self.tunable("THREADS", design.threads, 64, 1024)

    def tunable(self, name: str, value: int, minimum: int, maximum: int) -> str:
        """Declare a tunable of the stage and return its name; returns the value if sizes are fixed."""
        if not self.tuned:
            return str(value)
        return self.builder.tunable(f"{name}{self.number}", value, minimum, maximum)

    # --- thread layout ----------------------------------------------------------------------------

    @property
    @abstractmethod
    def grid(self) -> str:
        """The number of blocks that cover all rows once."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads that share a row, in the design (the tuner may change it)."""

    @property
    def rows_per_block(self) -> int:
        """Rows per block, in the design."""
        return self.design.threads // self.lanes * self.rows_per_pack

    @abstractmethod
    def header(self) -> list[str]:
        """Lines that declare `LANES`, `lane`, `row`, and `in_range`: whether the row exists."""

    @abstractmethod
    def vector(self, row_pass: RowPass) -> int:
        """Elements per pack in a pass."""

    @abstractmethod
    def loop_indices(self, row_pass: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """The index along each loop, for a pack of the pass; without a pass, along the outer loops only."""

    @abstractmethod
    def reduce_lanes(self, step: ReduceStep) -> list[str]:
        """Statements that reduce the partial results of a row's lanes; every lane receives the result."""

    @abstractmethod
    def emit_scan(self, loop: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """Statements of a pass with scans (cumulative sums, products, maxima or minima)."""

    @abstractmethod
    def shared_cache(self, node: Expr, count: int) -> tuple[str, str, str]:
        """An array in shared memory for a cached value: declaration, size in floats, current element."""

    # --- the kernel -------------------------------------------------------------------------------

    def write(self, name: str, max_split: int = 0) -> None:
        """Add the kernel. With `max_split`, it stores partial results, from at most that many blocks per
        row."""
        self.builder.begin_kernel()
        if self.design.cache_row and not self.partials and not max_split:
            self._plan_cache()
        names: Names = {}
        body = [line for step in self._needed_partials() for line in self._combine_partials(step)]
        for number, row_pass in enumerate(self.passes):
            body += self._emit_pass(number, row_pass, names)
            if max_split:
                for step in row_pass.reductions:
                    body += self._store_partial(step, max_split)
        if not max_split:
            body += self._emit_totals(names)
        if self.shared_sizes:
            body.insert(0, "extern __shared__ uint4 shared_memory[];")
        shared_bytes = f"4 * ({' + '.join(self.shared_sizes)})" if self.shared_sizes else "0"
        grid = self.grid if self.split == "1" else f"{self.grid} * {self.split}"
        self.builder.add_kernel(name, [*self.header(), *body], grid, self.threads, shared_bytes)

    def bind_printer(self, row_pass: RowPass | None = None) -> None:
        """Make the printer express loop variables by the indices of this pass."""
        self.printer.loop_indices, self.printer.row_suffix = self.loop_indices(row_pass), self.row_suffix

    def per_row(self, body: list[str]) -> list[str]:
        """`body`, repeated for each row of the thread."""
        if not self.row_suffix:
            return body
        return ["#pragma unroll", f"for (int j = 0; j < {self.rows_per_pack}; ++j) {{", *indented(body), "}"]

    @property
    def row_index(self) -> str:
        """The number of the current row."""
        return f"row * {self.rows_per_pack} + j" if self.row_suffix else "row"

    def declare(self, value_type: str, name: str) -> str:
        """The declaration of a per-row value."""
        return f"{value_type} {name}[{self.rows_per_pack}];" if self.row_suffix else f"{value_type} {name};"

    def _needed_partials(self) -> list[ReduceStep]:
        roots = [root for row_pass in self.passes for root in row_pass.roots]
        roots += [total.value for total in self.stage.totals] if self.split == "1" else []
        names = {node.data for node in nodes_of(roots, "row")}
        return [step for step in self.partials if step.name in names]

    def _combine_partials(self, step: ReduceStep) -> list[str]:
        """Statements that combine the partial results that several blocks have stored."""
        value_type, name = arithmetic_type(step.value.dtype), f"{step.name}{self.row_suffix}"
        partial = f"partial_{step.name}[s * {self.stage.rows} + {self.row_index}]"
        update = f"{name} = {combine(step.kind, name, partial)};"
        body = [
            f"{name} = {identity_element(step.kind, value_type)};",
            f"for (int s = 0; s < {self.partial_count}; ++s) {update}",
        ]
        return [self.declare(value_type, step.name), *self.per_row(body)]

    def _store_partial(self, step: ReduceStep, max_split: int) -> list[str]:
        count = max_split * self.stage.rows
        name = self.builder.add_temporary(f"partial_{step.name}", count, step.value.dtype)
        self.builder.written.add(name)
        text = f"{name}[part * {self.stage.rows} + {self.row_index}] = {step.name}{self.row_suffix};"
        return ["if (lane == 0) {", *indented(self.per_row([text])), "}"]

    def _emit_totals(self, names: Names) -> list[str]:
        """Statements that compute and store the block's partial result of each total."""
        lines: list[str] = []
        for total in self.stage.totals:
            name, value_type, inner_names = total.name, arithmetic_type(total.value.dtype), dict(names)
            partial = self.builder.add_temporary(f"partial_{name}", self.stage.rows, total.value.dtype)
            self.builder.written.add(partial)
            self.bind_printer()
            roots = [total.value] if total.value.op not in LEAVES else []
            inner = self.printer.statements(roots, inner_names)
            value = f"{value_type}({self.printer.text(total.value, inner_names)})"
            inner += [f"{name} = {combine(total.kind, name, value)};"]
            operator = REDUCE_OPERATORS[total.kind]
            lines += [
                f"__shared__ {value_type} scratch_{name}[({self.threads} + 31) / 32];",
                f"{value_type} {name} = {identity_element(total.kind, value_type)};",
                *("if (in_range && lane == 0) {", *indented(self.per_row(inner)), "}"),
                f"{name} = reduce_lanes<{operator}, {self.threads}>({name}, scratch_{name});",
                f"if (threadIdx.x == 0) {partial}[blockIdx.x] = {name};",
            ]
        return lines

    # --- passes -----------------------------------------------------------------------------------

    def _emit_pass(self, number: int, row_pass: RowPass, names: Names) -> list[str]:
        self.bind_printer()
        cached = cached_before(self.passes, number)
        invariants = [] if row_pass.guards else loop_invariants(row_pass.roots, set(row_pass.loops), cached)
        lines = self._emit_invariants(invariants, names)
        if not row_pass.loops:
            return lines + self._emit_row_steps(row_pass, names)
        lines += [f"constexpr int ITERATIONS{number} = ({self._packs(row_pass)} + STRIDE - 1) / STRIDE;"]
        lines += self._declare_cache(row_pass, number)
        loop = self._thread_loop(number, row_pass, cached)
        if loop.unroll != loop.iterations:
            limit = self._unroll_limit(row_pass)
            lines += [
                f"constexpr int {loop.unroll} = {loop.iterations} < {limit} ? {loop.iterations} : {limit};"
            ]
        for step in row_pass.reductions:
            value_type = arithmetic_type(step.value.dtype)
            identity = identity_element(step.kind, value_type)
            lines.append(self.declare(value_type, f"{step.name}_partial"))
            lines += self.per_row([f"{step.name}_partial{self.row_suffix} = {identity};"])
        scans = scans_of(row_pass.roots)
        lines += self.emit_scan(loop, scans, names) if scans else loop.emit(names)
        return lines + [line for step in row_pass.reductions for line in self.reduce_lanes(step)]

    def _emit_row_steps(self, row_pass: RowPass, names: Names) -> list[str]:
        """Statements for steps without loops: all lanes compute the row's values, and the first lane
        stores."""
        lines, inner_names, reductions = list[str](), dict(names), row_pass.reductions
        roots = [step.value for step in reductions if step.value.op not in LEAVES]
        inner = self.printer.statements(roots, inner_names)
        for step in reductions:
            inner += [f"{step.name}{self.row_suffix} = {self.printer.text(step.value, inner_names)};"]
        if reductions:
            lines += [self.declare(arithmetic_type(step.value.dtype), step.name) for step in reductions]
            lines += self.per_row(inner) if self.row_suffix else ["{", *indented(inner), "}"]
        stores = RowPass((), [step for step in row_pass.steps if isinstance(step, StoreStep)])
        if stores.steps:
            body = self.single_pack_loop(stores, self.loop_indices(None)).emit_pack(dict(names))
            lines += ["if (lane == 0) {", *indented(body), "}"]
        return lines

    def single_pack_loop(self, row_pass: RowPass, loop_indices: dict[LoopVar, IndexExpr]) -> ThreadLoop:
        """A loop over a single pack across the thread's rows, which is always in bounds."""
        return ThreadLoop(
            self.builder,
            row_pass,
            self.rows_per_pack,
            loop_indices,
            always_in_bounds="true",
            in_bounds="true",
            index_lines=(),
            iterations="1",
            unroll="1",
            row_suffix=self.row_suffix,
        )

    def _emit_invariants(self, nodes: list[Expr], names: Names) -> list[str]:
        """Statements before the loop that compute values that are constant along the row."""
        if not self.row_suffix:
            return self.printer.statements(nodes, names)
        lines: list[str] = []
        for node in nodes:
            if node in names:
                continue
            name, inner_names = f"invariant{node.number}", dict(names)
            body = self.printer.statements([node], inner_names)
            lines += [self.declare(arithmetic_type(node.dtype), name)]
            lines += self.per_row([*body, f"{name}[j] = {self.printer.text(node, inner_names)};"])
            names[node] = f"{name}[j]"
        return lines

    def _packs(self, row_pass: RowPass) -> int:
        """Packs along a row."""
        return iterations(row_pass.loops) // (1 if self.row_suffix else self.vector(row_pass))

    def _thread_loop(self, number: int, row_pass: RowPass, cached: set[Expr]) -> ThreadLoop:
        count, packs = f"ITERATIONS{number}", self._packs(row_pass)
        in_registers = self.in_registers and (row_pass.cached or cached)
        full_unroll = in_registers or (row_pass.guards and packs <= _MAX_UNROLLED_WINDOW)
        unroll = count if full_unroll else f"UNROLL{number}"
        return ThreadLoop(
            self.builder,
            row_pass,
            self.vector(row_pass),
            self.loop_indices(row_pass),
            always_in_bounds=f"({packs} % STRIDE == 0 && {count} % {unroll} == 0)",
            in_bounds=f"pack < {packs}",
            index_lines=["const Int pack = (c + u) * STRIDE + first_pack;"],
            iterations=count,
            unroll=unroll,
            row_suffix=self.row_suffix,
            cached={node: self.cached[node] for node in {*cached, *row_pass.cached}},
        )

    def _unroll_limit(self, row_pass: RowPass) -> int:
        loops = set(row_pass.loops)
        loads = [node for node in nodes_of(row_pass.roots, "load") if node.variables & loops]
        return max(1, _MAX_LOADS_IN_FLIGHT // (self.vector(row_pass) * max(1, len(loads))))

    # --- values cached between passes -------------------------------------------------------------

    def _plan_cache(self) -> None:
        """Decide where values are cached: in registers if they fit, else in shared memory, else nowhere."""
        choose_cached(self.passes)
        _cache_loads(self.passes)
        cached = [(node, row_pass) for row_pass in self.passes for node in row_pass.cached]
        registers = sum(
            -(-self._packs(row_pass) // self.lanes) * self.vector(row_pass) for _, row_pass in cached
        )
        self.in_registers = registers <= _MAX_CACHE_REGISTERS
        shared_bytes = sum(iterations(row_pass.loops) for _, row_pass in cached) * 4 * self.rows_per_block
        only_floats = all(arithmetic_type(node.dtype) == "float" for node, _ in cached)
        fits = shared_bytes <= min(_MAX_CACHE_BYTES, self.stage.max_shared_bytes)
        if not self.in_registers and not (fits and only_floats):
            for row_pass in self.passes:
                row_pass.cached.clear()

    def _declare_cache(self, row_pass: RowPass, number: int) -> list[str]:
        lines = []
        for node in row_pass.cached:
            if self.in_registers:
                name, vector = f"cached{node.number}", self.vector(row_pass)
                lines += [f"{arithmetic_type(node.dtype)} {name}[ITERATIONS{number}][{vector}];"]
                self.cached[node] = f"{name}[u][j]"
                continue
            count = self._packs(row_pass) * self.vector(row_pass)
            line, size, self.cached[node] = self.shared_cache(node, count)
            lines += [line]
            self.shared_sizes.append(size)
        return lines


def _cache_loads(passes: list[RowPass]) -> None:
    """Marks each element that several passes load to be cached by the first of them."""
    for position, later in enumerate(passes):
        cached = dict.fromkeys(cached_before(passes, position), "")
        for node in sorted(nodes_to_compute(later.roots, cached), key=lambda node: node.number):
            if node.op != "load" or not node.variables & set(later.loops):
                continue
            for number, first in enumerate(passes[:position]):
                if first.loops != later.loops or first.guards:
                    continue
                if node in nodes_to_compute(first.roots, dict.fromkeys(cached_before(passes, number), "")):
                    first.cached.append(node)
                    break
