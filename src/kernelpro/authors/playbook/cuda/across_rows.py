"""The thread layout in which consecutive threads have neighbouring rows and a pack lies across rows."""

from __future__ import annotations

from dataclasses import replace
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


class ThreadsAcrossRows(RowKernel):
    """The lanes of a row are `WIDTH` threads apart; a thread processes `rows_per_pack` rows."""

    row_suffix = "[j]"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rows_per_pack, self.lane_count = self.layout()

    def layout(self) -> tuple[int, str]:
        """The rows per thread, and the threads per row."""
        rows = fit_vector(self.design.vector_width, self.stage.outer)
        return rows, self.tunable("LANES", self.design.lanes, 1, 32)

    @property
    def lanes(self) -> int:
        """Threads that share a row, in the design (the tuner may change it)."""
        return self.design.lanes

    @property
    def grid(self) -> str:
        """Blocks of `WIDTH` threads with `rows_per_pack` rows each."""
        width = f"({self.threads} / {self.lane_count})"
        return f"(({self.stage.rows // self.rows_per_pack} + {width} - 1) / {width})"

    def header(self) -> list[str]:
        """Lines that split the thread's index: the row is the fast part, the lane the slow one."""
        packs, split = self.stage.rows // self.rows_per_pack, self.split
        sizes = f"LANES = {self.lane_count}, WIDTH = {self.threads} / LANES, STRIDE = LANES * {split}"
        return [
            f"[[maybe_unused]] constexpr int {sizes};",
            "const int lane = threadIdx.x / WIDTH;",
            f"Int row = Int(blockIdx.x / {split}) * WIDTH + Int(threadIdx.x % WIDTH);",
            f"[[maybe_unused]] const bool in_range = row < {packs};",
            f"row = in_range ? row : {packs - 1};",
            f"[[maybe_unused]] const int part = blockIdx.x % {split};",
            "[[maybe_unused]] const Int first_pack = part * LANES + lane;",
        ]

    def vector(self, row_pass: RowPass) -> int:
        """A pack has one element of each of the thread's rows."""
        return self.rows_per_pack

    def loop_indices(self, row_pass: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """`row` counts groups of `rows_per_pack` rows; `j` is the row within the group."""
        row = variable(LoopVar("row", self.stage.rows // self.rows_per_pack))
        j = variable(LoopVar("j", self.rows_per_pack))
        outer = unflatten_pack(row, self.stage.outer, self.rows_per_pack, j)
        if row_pass is None or not row_pass.loops:
            return outer
        return outer | unflatten_loops(row_pass.loops, variable(LoopVar("pack", self._packs(row_pass))))

    def reduce_lanes(self, step: ReduceStep) -> list[str]:
        """Statements that reduce across lanes through shared memory."""
        name, value_type = step.name, arithmetic_type(step.value.dtype)
        return [
            self._scratch(value_type, name),
            f"reduce_across<{REDUCE_OPERATORS[step.kind]}, LANES, WIDTH>({name}_partial, scratch_{name});",
            self.declare(value_type, name),
            *self.per_row([f"{name}[j] = {name}_partial[j];"]),
        ]

    def _scratch(self, value_type: str, name: str) -> str:
        size = f"LANES > 1 ? {self.threads} * {self.rows_per_pack} : 1"
        return f"__shared__ {value_type} scratch_{name}[{size}];"

    def shared_cache(self, node: Expr, count: int) -> tuple[str, str, str]:
        """An array in which consecutive threads have consecutive elements."""
        start = " + ".join(["(float*)shared_memory", *self.shared_sizes])
        line = f"float* const cached{node.number} = {start} + threadIdx.x % WIDTH;"
        width = f"({self.threads} / {self.lane_count})"
        return line, f"{width} * {count}", f"cached{node.number}[(pack * {self.rows_per_pack} + j) * WIDTH]"

    def emit_scan(self, loop: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """Statements of a pass with scans: each lane scans a contiguous part of the row. With several lanes,
        a first loop reduces each part, and a scan over the lanes gives the prefix with which the second loop
        starts."""
        loop = replace(
            loop,
            index_lines=[f"const Int pack = lane * {loop.iterations} + c + u;"],
            in_bounds=f"c + u < {loop.iterations} && {loop.in_bounds}",
            always_in_bounds="false",
        )
        lines, update, inner_names = [], list[str](), dict(names)
        loads = loop.emit_loads(inner_names)
        for node in scans:
            kind, value_type, name = node.data[0], arithmetic_type(node.dtype), f"scan{node.number}"
            lines += [self._scratch(value_type, name), self.declare(value_type, name)]
            lines += self.per_row([f"{name}[j] = {identity_element(kind, value_type)};"])
            argument_names = dict(inner_names)
            update += self.printer.statements([a for a in node.args if a.op not in LEAVES], argument_names)
            value = f"{value_type}({self.printer.text(node.args[0], argument_names)})"
            update += [f"{name}[j] = {REDUCE_OPERATORS[kind]}::combine({name}[j], {value});"]
            inner_names[node] = f"{name}[j]"
        reduce_part = loop.unrolled(loop.per_element(["{", *indented(update), "}"]))
        first_loop = loop.outer_loop([*loads, *reduce_part])
        first_loop += [
            f"scan_across<{REDUCE_OPERATORS[node.data[0]]}, LANES, WIDTH>(scan{node.number}, "
            f"scratch_scan{node.number});"
            for node in scans
        ]
        lines += ["if constexpr (LANES > 1) {", *indented(first_loop), "}"]
        return [*lines, *loop.outer_loop([*loads, *loop.unrolled(loop.emit_pack(inner_names, update))])]
