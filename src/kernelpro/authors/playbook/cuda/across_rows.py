"""Threads side by side along neighbouring rows; a piece lies across them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.row_kernel import RowKernel
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, fit_vector, unflatten_pack
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep


class ThreadsAcrossRows(RowKernel):
    of_row = "[j]"

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.rows_per_pack, self.lanes_tunable = self.layout()

    def layout(self) -> tuple[int, str]:
        """Rows of a thread, and threads of a row."""
        return fit_vector(self.design.vector_width, self.stage.outer), self.tunable("LANES", self.design.lanes, 1, 32)

    @property
    def lanes(self) -> int:
        return self.design.lanes

    @property
    def blocks(self) -> str:
        width = f"({self.threads} / {self.lanes_tunable})"
        return f"(({self.stage.rows // self.rows_per_pack} + {width} - 1) / {width})"

    def header(self) -> list[str]:
        pieces, split = self.stage.rows // self.rows_per_pack, self.split
        return [
            f"[[maybe_unused]] constexpr int LANES = {self.lanes_tunable}, WIDTH = {self.threads} / LANES, SPAN = LANES * {split};",
            "const int lane = threadIdx.x / WIDTH;",
            f"Int row = Int(blockIdx.x / {split}) * WIDTH + Int(threadIdx.x % WIDTH);",
            f"[[maybe_unused]] const bool live = row < {pieces};",
            f"row = live ? row : {pieces - 1};",
            f"[[maybe_unused]] const int share = blockIdx.x % {split};",
            "[[maybe_unused]] const Int start = share * LANES + lane;",
        ]

    def vector(self, one: RowPass) -> int:
        return self.rows_per_pack

    def places(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        row = variable(LoopVar("row", self.stage.rows // self.rows_per_pack))
        outer = unflatten_pack(row, self.stage.outer, self.rows_per_pack, variable(LoopVar("j", self.rows_per_pack)))
        if one is None or not one.loops:
            return outer
        return outer | unflatten_pack(variable(LoopVar("at", self._packs(one))), one.loops, 1, IndexExpr())

    def join(self, step: ReduceStep) -> list[str]:
        kind = arithmetic_type(step.value.dtype)
        return [
            f"__shared__ {kind} lanes_{step.name}[LANES > 1 ? {self.threads} * {self.rows_per_pack} : 1];",
            f"across<{REDUCE_OPERATORS[step.kind]}, LANES, WIDTH>({step.name}_part, lanes_{step.name});",
            self.declare(kind, step.name),
            *self.per_row([f"{step.name}[j] = {step.name}_part[j];"]),
        ]

    def in_shared(self, node: Expr, count: int) -> tuple[str, str, str]:
        start = " + ".join(["(float*)memory", *self.shared_sizes])
        line = f"float* const kept{node.number} = {start} + threadIdx.x % WIDTH;"
        width = f"({self.threads} / {self.lanes_tunable})"
        return line, f"{width} * {count}", f"kept{node.number}[(at * {self.rows_per_pack} + j) * WIDTH]"

    def scan(self, turns: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """A lane has a stretch of the row; what lies before it is known when all have been through theirs once."""
        turns = replace(
            turns,
            here=[f"const Int at = lane * {turns.iterations} + c + u;"],
            inside=f"c + u < {turns.iterations} && {turns.in_bounds}",
            whole="false",
        )
        lines, first, own = [], list[str](), dict(names)
        loads = turns.emit_loads(own)
        for node in scans:
            kind, name, op = arithmetic_type(node.dtype), f"s{node.number}", REDUCE_OPERATORS[node.data[0]]
            lines += [f"__shared__ {kind} lanes_{name}[LANES > 1 ? {self.threads} * {self.rows_per_pack} : 1];"]
            lines += [
                self.declare(kind, name),
                *self.per_row([f"{name}[j] = {identity(node.data[0], kind)};"]),
            ]
            inner = dict(own)
            value = self.printer.statements([a for a in node.args if a.op not in LEAVES], inner)
            first += [
                *value,
                f"{name}[j] = {op}::of({name}[j], {kind}({self.printer.text(node.args[0], inner)}));",
            ]
            own[node] = f"{name}[j]"
        once = turns.outer_loop([*loads, *turns.unrolled(turns.per_element(["{", *indented(first), "}"]))])
        befores = [
            f"before<{REDUCE_OPERATORS[n.data[0]]}, LANES, WIDTH>(s{n.number}, lanes_s{n.number});" for n in scans
        ]
        lines += ["if constexpr (LANES > 1) {", *indented([*once, *befores]), "}"]
        return [*lines, *turns.outer_loop([*loads, *turns.unrolled(turns.emit_pack(own, first))])]
