"""Overlapping windows: a thread computes several outputs in a column and loads shared inputs only once.

A column of eight outputs of a 7 x 7 convolution needs 14 rows of 7 inputs, not 56. The thread iterates over
these input rows. Each input row is one iteration of the window's loop for every output whose window contains
it. Consecutive threads process consecutive columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.across_rows import ThreadsAcrossRows
from kernelpro.authors.playbook.cuda.syntax import combine, identity_element, indented
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Stage
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.schedule.passes import RowPass, split_into_passes

_MAX_UNROLLED = 1024
"""Most iterations that are unrolled, over all outputs of a thread."""


@dataclass(frozen=True)
class WindowOverlap:
    """How windows overlap: the next output along `output_loop` reads a window that is `stride` iterations of
    `window_loop` further."""

    output_loop: LoopVar
    window_loop: LoopVar
    stride: int

    def input_rows(self, outputs: int) -> int:
        """Input rows that this many consecutive outputs need."""
        return self.stride * (outputs - 1) + self.window_loop.extent

    def is_shared(self, index: IndexExpr) -> bool:
        """Whether the index is the same for all outputs whose windows contain an input row."""
        step, window_step = index.coefficient(self.output_loop), index.coefficient(self.window_loop)
        rest = index - variable(self.output_loop) * step - variable(self.window_loop) * window_step
        return step == self.stride * window_step and not rest.variables & {self.output_loop, self.window_loop}


def find_overlap(stage: Stage) -> WindowOverlap | None:
    """How the windows of consecutive outputs overlap; None if they do not, or for a matrix product."""
    looped = [row_pass for row_pass in split_into_passes(stage) if row_pass.loops]
    if len(looped) != 1 or stage.totals or len(looped[0].reductions) != len(looped[0].steps):
        return None
    return None if find_contraction(stage) else next(_overlaps(stage, looped[0]), None)


def _overlaps(stage: Stage, row_pass: RowPass) -> Iterator[WindowOverlap]:
    """Candidates for which all guards, and all loads that need a guard, are shared between outputs."""
    guarded = {var for guard in row_pass.guards for var in guard.index.variables} & set(stage.outer)
    for output_loop in reversed(stage.outer[:-1]):
        for window_loop in row_pass.loops:
            for index in (node.data[1] for node in _loads(row_pass)):
                step, window_step = index.coefficient(output_loop), index.coefficient(window_loop)
                if not 0 < window_step <= step < window_step * window_loop.extent or step % window_step:
                    continue
                overlap = WindowOverlap(output_loop, window_loop, step // window_step)
                loads_shared = all(
                    overlap.is_shared(node.data[1]) or not node.variables & guarded
                    for node in _loads(row_pass)
                )
                guards_shared = all(overlap.is_shared(guard.index) for guard in row_pass.guards)
                if overlap.is_shared(index) and loads_shared and guards_shared:
                    yield overlap


def _loads(row_pass: RowPass) -> list[Expr]:
    return sorted(nodes_of(row_pass.roots, "load"), key=lambda node: node.number)


def outputs_per_thread(stage: Stage, maximum: int) -> int:
    """Outputs per thread: the largest divisor of their number up to `maximum` that is small enough to
    unroll."""
    overlap = find_overlap(stage)
    if not overlap:
        return 1
    loops = [var for row_pass in split_into_passes(stage) for var in row_pass.loops]
    others = prod(var.extent for var in loops if var != overlap.window_loop)
    for outputs in range(maximum, 0, -1):
        unrolled = outputs * overlap.input_rows(outputs) * others
        if overlap.output_loop.extent % outputs == 0 and unrolled <= _MAX_UNROLLED:
            return outputs
    return 1


class SlidingWindows(ThreadsAcrossRows):
    """A thread computes `coarsening` consecutive outputs along the loop in which their windows overlap."""

    def layout(self) -> tuple[int, str]:
        """The outputs per thread, and the threads per output: one."""
        overlap = find_overlap(self.stage)
        assert overlap, "the caller checks that windows overlap"
        self._overlap = overlap
        return outputs_per_thread(self.stage, self.design.coarsening), "1"

    def loop_indices(self, row_pass: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """`j` is the output within the thread; `input_row` and `j` give the index along the window's loop."""
        overlap, outputs = self._overlap, self.rows_per_pack
        row, j = variable(LoopVar("row", self.stage.rows // outputs)), variable(LoopVar("j", outputs))
        sizes = [var.extent // (outputs if var == overlap.output_loop else 1) for var in self.stage.outer]
        indices = dict(zip(self.stage.outer, unflatten(row, sizes), strict=True))
        indices[overlap.output_loop] = indices[overlap.output_loop] * outputs + j
        if row_pass and row_pass.loops:
            input_row = variable(LoopVar("input_row", overlap.input_rows(outputs)))
            indices |= {var: variable(var) for var in row_pass.loops}
            indices[overlap.window_loop] = input_row - j * overlap.stride
        return indices

    def _emit_pass(self, number: int, row_pass: RowPass, names: Names) -> list[str]:
        if not row_pass.loops:
            return super()._emit_pass(number, row_pass, names)
        lines, overlap, guards = list[str](), self._overlap, row_pass.guards
        for step in row_pass.reductions:
            value_type = arithmetic_type(step.value.dtype)
            lines += [self.declare(value_type, step.name)]
            lines += self.per_row([f"{step.name}[j] = {identity_element(step.kind, value_type)};"])
        self.bind_printer(row_pass)
        loop = self.single_pack_loop(row_pass, self.loop_indices(row_pass))
        shared, inner_names = (
            [node for node in _loads(row_pass) if overlap.is_shared(node.data[1])],
            dict(names),
        )
        body = [f"const bool inside = {' && '.join(map(loop.guard_condition, guards))};"] if guards else []
        for node in shared:
            name, value_type = f"v{node.number}", arithmetic_type(node.dtype)
            text = self.printer.text(node, inner_names)
            text = f"inside ? {text} : {value_type}(0)" if guards else text
            body.append(f"const {value_type} {name} = {text};")
            inner_names[node] = name
        body += self.per_row(self._update_output(row_pass, shared, inner_names))
        loops = [(var.name, var.extent) for var in row_pass.loops if var != overlap.window_loop]
        for name, extent in reversed([("input_row", overlap.input_rows(self.rows_per_pack)), *loops]):
            header = f"for (int {name} = 0; {name} < {extent}; ++{name}) {{"
            body = ["#pragma unroll", header, *indented(body), "}"]
        return [*lines, *body]

    def _update_output(self, row_pass: RowPass, shared: list[Expr], names: Names) -> list[str]:
        """Statements that add the input row to output `j` if its window contains the row."""
        overlap, inner_names = self._overlap, dict(names)
        roots = [root for root in row_pass.roots if root.op not in LEAVES]
        lines = self.printer.statements(roots, inner_names)
        for step in row_pass.reductions:
            value_type = arithmetic_type(step.value.dtype)
            value = f"{value_type}({self.printer.text(step.value, inner_names)})"
            if row_pass.guards and not (step.kind == "sum" and _is_zero_if(step.value, shared)):
                value = f"inside ? {value} : {identity_element(step.kind, value_type)}"
            lines.append(f"{step.name}[j] = {combine(step.kind, f'{step.name}[j]', value)};")
        position = f"input_row - {overlap.stride} * j"
        condition = f"{position} >= 0 && {position} < {overlap.window_loop.extent}"
        return [f"if ({condition}) {{", *indented(lines), "}"]


def _is_zero_if(value: Expr, zeros: list[Expr]) -> bool:
    """Whether the value is zero whenever the loads in `zeros` are zero."""
    return value in zeros or (value.op == "mul" and any(_is_zero_if(arg, zeros) for arg in value.args))
