"""The thread layout in which the lanes of a row are consecutive threads and a pack lies along the row."""

from __future__ import annotations

from typing import Any

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.row_kernel import RowKernel
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, identity_element, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, fit_vector, unflatten_pack
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, unflatten_loops, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep
from kernelpro.authors.playbook.schedule.passes import RowPass


class ThreadsAlongRow(RowKernel):
    """A block processes `coarsening` rows and divides its threads among them."""

    row_suffix, rows_per_pack = "", 1

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.coarsening = self.tunable("COARSENING", self.design.coarsening, 1, 32)

    @property
    def lanes(self) -> int:
        """Threads that share a row, in the design (the tuner may change it)."""
        return self.design.threads // self.design.coarsening

    @property
    def grid(self) -> str:
        """Blocks of `coarsening` rows each."""
        return f"(({self.stage.rows} + {self.coarsening} - 1) / {self.coarsening})"

    def header(self) -> list[str]:
        """Lines that split the thread's index: the lane is the fast part, the row the slow one."""
        rows, split = self.stage.rows, self.split
        lanes = f"LANES = {self.threads} / {self.coarsening}"
        return [
            f"[[maybe_unused]] constexpr int {lanes}, STRIDE = LANES * {split};",
            'static_assert((LANES & (LANES - 1)) == 0, "lanes exchange values by xor shuffles");',
            "const int lane = threadIdx.x % LANES;",
            f"Int row = Int(blockIdx.x / {split}) * {self.coarsening} + Int(threadIdx.x / LANES);",
            f"[[maybe_unused]] const bool in_range = row < {rows};",
            f"row = in_range ? row : {rows - 1};",
            f"[[maybe_unused]] const int part = blockIdx.x % {split};",
            "[[maybe_unused]] const Int first_pack = part * LANES + lane;",
        ]

    def vector(self, row_pass: RowPass) -> int:
        """A pack has as many elements as the innermost loop of the pass allows."""
        return fit_vector(self.design.vector_width, row_pass.loops)

    def loop_indices(self, row_pass: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """`pack` counts the packs of a row; `j` is the element within the pack."""
        outer = unflatten_loops(self.stage.outer, variable(LoopVar("row", self.stage.rows)))
        if row_pass is None or not row_pass.loops:
            return outer
        vector = self.vector(row_pass)
        pack = variable(LoopVar("pack", self._packs(row_pass)))
        return outer | unflatten_pack(pack, row_pass.loops, vector, variable(LoopVar("j", vector)))

    def reduce_lanes(self, step: ReduceStep) -> list[str]:
        """Statements that reduce across consecutive threads: with shuffles, then through shared memory."""
        name, value_type = step.name, arithmetic_type(step.value.dtype)
        reduction = f"reduce_lanes<{REDUCE_OPERATORS[step.kind]}, LANES>({name}_partial, scratch_{name})"
        return [
            f"__shared__ {value_type} scratch_{name}[({self.threads} + 31) / 32];",
            f"const {value_type} {name} = {reduction};",
        ]

    def shared_cache(self, node: Expr, count: int) -> tuple[str, str, str]:
        """One array for each row, in which the elements `j` of all packs are consecutive."""
        start = " + ".join(["(float*)shared_memory", *self.shared_sizes])
        packs = next(self._packs(row_pass) for row_pass in self.passes if node in row_pass.cached)
        line = f"float* const cached{node.number} = {start} + threadIdx.x / LANES * {count};"
        return line, f"{self.coarsening} * {count}", f"cached{node.number}[j * {packs} + pack]"

    def emit_scan(self, loop: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """Statements of a pass with scans: each thread scans its packs, and a scan over the lanes gives the
        prefix before each pack."""
        lines, inner_names = [], dict(names)
        body = loop.emit_loads(inner_names)
        for node in scans:
            kind, value_type, name = node.data[0], arithmetic_type(node.dtype), f"scan{node.number}"
            operator, identity = REDUCE_OPERATORS[kind], identity_element(kind, value_type)
            lines += [
                f"__shared__ {value_type} scratch_{name}[{loop.unroll} * (({self.threads} + 31) / 32)];",
                f"{value_type} carry_{name} = {identity};",
            ]
            argument_names = dict(inner_names)
            value = self.printer.statements([a for a in node.args if a.op not in LEAVES], argument_names)
            value += [f"{name}[u][j] = {value_type}({self.printer.text(node.args[0], argument_names)});"]
            elements = loop.if_in_bounds(value)
            elements[-1:] = ["} else {", *indented([f"{name}[u][j] = {identity};"]), "}"]
            previous = f"{name}[u][j > 0 ? j - 1 : 0]"
            elements += [f"if (j > 0) {name}[u][j] = {operator}::combine({previous}, {name}[u][j]);"]
            last = f"prefix_{name}[u] = {name}[u][{loop.vector - 1}];"
            body += [f"{value_type} {name}[{loop.unroll}][{loop.vector}], prefix_{name}[{loop.unroll}];"]
            body += loop.unrolled([*loop.per_element(elements), last], predicated=False)
            body += [f"scan_lanes<{operator}, LANES>(prefix_{name}, carry_{name}, scratch_{name});"]
            inner_names[node] = f"{operator}::combine(prefix_{name}[u], {name}[u][j])"
        body += loop.unrolled(loop.emit_pack(inner_names))
        return [*lines, *loop.outer_loop(body)]
