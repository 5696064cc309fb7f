"""Threads side by side along a row; a piece lies along it."""

from __future__ import annotations

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


class ThreadsAlongRow(RowKernel):
    of_row, across = "", 1

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.rows_per_block_tunable = self.tunable("COARSENING", self.design.coarsening, 1, 32)

    @property
    def lanes(self) -> int:
        return self.design.threads // self.design.coarsening

    @property
    def blocks(self) -> str:
        return f"(({self.stage.rows} + {self.rows_per_block_tunable} - 1) / {self.rows_per_block_tunable})"

    def header(self) -> list[str]:
        rows, split = self.stage.rows, self.split
        return [
            f"[[maybe_unused]] constexpr int LANES = {self.threads} / {self.rows_per_block_tunable}, SPAN = LANES * {split};",
            'static_assert((LANES & (LANES - 1)) == 0, "threads of a row find each other by the bits of their numbers");',
            "const int lane = threadIdx.x % LANES;",
            f"Int row = Int(blockIdx.x / {split}) * {self.rows_per_block_tunable} + Int(threadIdx.x / LANES);",
            f"[[maybe_unused]] const bool live = row < {rows};",
            f"row = live ? row : {rows - 1};",
            f"[[maybe_unused]] const int share = blockIdx.x % {split};",
            "[[maybe_unused]] const Int start = share * LANES + lane;",
        ]

    def vector(self, one: RowPass) -> int:
        return fit_vector(self.design.vector_width, one.loops)

    def places(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        outer = unflatten_pack(variable(LoopVar("row", self.stage.rows)), self.stage.outer, 1, IndexExpr())
        if one is None or not one.loops:
            return outer
        vector = self.vector(one)
        at = variable(LoopVar("at", self._packs(one)))
        return outer | unflatten_pack(at, one.loops, vector, variable(LoopVar("j", vector)))

    def join(self, step: ReduceStep) -> list[str]:
        kind = arithmetic_type(step.value.dtype)
        return [
            f"__shared__ {kind} warps_{step.name}[({self.threads} + 31) / 32];",
            f"const {kind} {step.name} = joined<{REDUCE_OPERATORS[step.kind]}, LANES>({step.name}_part, warps_{step.name});",
        ]

    def in_shared(self, node: Expr, count: int) -> tuple[str, str, str]:
        start = " + ".join(["(float*)memory", *self.shared_sizes])
        pieces = next(self._packs(one) for one in self.passes if node in one.cached)
        line = f"float* const kept{node.number} = {start} + threadIdx.x / LANES * {count};"
        return line, f"{self.rows_per_block_tunable} * {count}", f"kept{node.number}[j * {pieces} + at]"

    def scan(self, turns: ThreadLoop, scans: list[Expr], names: Names) -> list[str]:
        """Pieces are summed up by their threads, piece after piece by all; each thread then knows what lies before its own."""
        lines, own = [], dict(names)
        loads = turns.emit_loads(own)
        body: list[str] = [*loads]
        for node in scans:
            kind, name, op = arithmetic_type(node.dtype), f"s{node.number}", REDUCE_OPERATORS[node.data[0]]
            lines += [f"__shared__ {kind} warps_{name}[{turns.unroll} * (({self.threads} + 31) / 32)];"]
            lines += [f"{kind} carry_{name} = {identity(node.data[0], kind)};"]
            inner = dict(own)
            value = self.printer.statements([a for a in node.args if a.op not in LEAVES], inner)
            value += [f"{name}[u][j] = {kind}({self.printer.text(node.args[0], inner)});"]
            nothing = [f"{name}[u][j] = {identity(node.data[0], kind)};"]
            filled = [
                f"if ({turns.always_in_bounds} || ({turns.in_bounds})) {{",
                *indented(value),
                "} else {",
                *indented(nothing),
                "}",
            ]
            summed = [f"if (j > 0) {name}[u][j] = {op}::of({name}[u][j > 0 ? j - 1 : 0], {name}[u][j]);"]
            last = [f"before_{name}[u] = {name}[u][{turns.vector - 1}];"]
            body += [f"{kind} {name}[{turns.unroll}][{turns.vector}], before_{name}[{turns.unroll}];"]
            body += turns.unrolled(turns.per_element([*filled, *summed]) + last, predicated=False)
            body += [f"running<{op}, LANES>(before_{name}, carry_{name}, warps_{name});"]
            own[node] = f"{op}::of(before_{name}[u], {name}[u][j])"
        body += turns.unrolled(turns.emit_pack(own))
        return [*lines, *turns.outer_loop(body)]
