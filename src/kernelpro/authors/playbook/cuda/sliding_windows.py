"""Windows that overlap, in CUDA: a thread has several rows one below the other, and reads what their windows share once.

Of a 7 x 7 convolution, eight outputs one below the other need 14 rows of 7 inputs, not 56 of them. The thread goes through
those rows; each row is a turn of the window's loop for every output that it belongs to. Neighbouring threads have
neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.across_rows import ThreadsAcrossRows
from kernelpro.authors.playbook.cuda.syntax import combined, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.schedule.passes import RowPass, split_into_passes
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage

_MAX_UNROLLED = 1024
"""Turns that are written out, those of all outputs together."""


@dataclass(frozen=True)
class WindowOverlap:
    """Going down one row of outputs is going down `stride` turns of a window's loop."""

    output_loop: LoopVar
    window_loop: LoopVar
    stride: int

    def input_rows(self, outputs: int) -> int:
        """Of inputs, for so many outputs."""
        return self.stride * (outputs - 1) + self.window_loop.extent

    def is_shared(self, index: IndexExpr) -> bool:
        """Whether it is the same for all outputs that a row of inputs belongs to."""
        step, turn = index.coefficient(self.output_loop), index.coefficient(self.window_loop)
        apart = index - variable(self.output_loop) * step - variable(self.window_loop) * turn
        return step == self.stride * turn and not apart.variables & {self.output_loop, self.window_loop}


def find_overlap(stage: Stage) -> WindowOverlap | None:
    """How the windows of a stage overlap from one row of outputs to the next; None where it has none, or none that do, and for
    products."""
    looped = [one for one in split_into_passes(stage) if one.loops]
    if (
        len(looped) != 1
        or find_contraction(stage)
        or stage.totals
        or not all(isinstance(step, ReduceStep) for step in looped[0].steps)
    ):
        return None
    return next(_overlaps(stage, looped[0]), None)


def _overlaps(stage: Stage, one: RowPass) -> Iterator[WindowOverlap]:
    """Where guards are the same for all outputs, and so is whatever has to be guarded."""
    guarded = {var for guard in one.guards for var in guard.index.variables} & set(stage.outer)
    for down in reversed(stage.outer[:-1]):
        for along in one.loops:
            for index in (node.data[1] for node in _loads(one)):
                step, turn = index.coefficient(down), index.coefficient(along)
                if not 0 < turn <= step < turn * along.extent or step % turn:
                    continue
                found = WindowOverlap(down, along, step // turn)
                kept = all(found.is_shared(n.data[1]) or not n.variables & guarded for n in _loads(one))
                if found.is_shared(index) and kept and all(found.is_shared(guard.index) for guard in one.guards):
                    yield found


def _loads(one: RowPass) -> list[Expr]:
    found = {node.number: node for step in one.steps for node in step.value.walk() if node.op == "load"}
    return [found[number] for number in sorted(found)]


def outputs_per_thread(stage: Stage, maximum: int) -> int:
    """Rows of outputs that a thread takes: up to `together`, as many as divide all of them and can be written out."""
    found = find_overlap(stage)
    if not found:
        return 1
    others = prod(var.extent for one in split_into_passes(stage) for var in one.loops if var != found.window_loop)
    fits = (
        n
        for n in range(maximum, 0, -1)
        if found.output_loop.extent % n == 0 and n * found.input_rows(n) * others <= _MAX_UNROLLED
    )
    return next(fits, 1)


class SlidingWindows(ThreadsAcrossRows):
    def laid(self) -> tuple[int, str]:
        found = find_overlap(self.stage)
        assert found, "the caller has looked"
        self._overlap = found
        return outputs_per_thread(self.stage, self.design.coarsening), "1"

    def places(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        row, j = variable(LoopVar("row", self.stage.rows // self.rows_per_pack)), variable(LoopVar("j", self.rows_per_pack))
        extents = [var.extent // (self.rows_per_pack if var == self._overlap.output_loop else 1) for var in self.stage.outer]
        found = dict(zip(self.stage.outer, unflatten(row, extents), strict=True))
        found[self._overlap.output_loop] = found[self._overlap.output_loop] * self.rows_per_pack + j
        if one and one.loops:
            turn = variable(LoopVar("turn", self._overlap.input_rows(self.rows_per_pack)))
            found |= {var: variable(var) for var in one.loops} | {
                self._overlap.window_loop: turn - j * self._overlap.stride
            }
        return found

    def _pass(self, number: int, one: RowPass, names: Names) -> list[str]:
        if not one.loops:
            return super()._emit_pass(number, one, names)
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        lines = []
        for step in reduces:
            kind = arithmetic_type(step.value.dtype)
            lines += [
                self.declare(kind, step.name),
                *self.per_row([f"{step.name}[j] = {identity(step.kind, kind)};"]),
            ]
        self.bind_printer(one)
        turns = ThreadLoop(
            self.builder, one, self.rows_per_pack, self.places(one), "true", "true", (), "1", "1", self.row_suffix
        )
        shared, own = [node for node in _loads(one) if self._overlap.is_shared(node.data[1])], dict(names)
        row = [f"const bool inside = {' && '.join(map(turns.guard_condition, one.guards))};"] if one.guards else []
        for node in shared:
            name, kind = f"v{node.number}", arithmetic_type(node.dtype)
            text = self.printer.text(node, own)
            row.append(f"const {kind} {name} = {f'inside ? {text} : {kind}(0)' if one.guards else text};")
            own[node] = name
        each = self.printer.statements(
            [step.value for step in reduces if step.value.op not in LEAVES], inner := dict(own)
        )
        for step in reduces:
            value = f"{arithmetic_type(step.value.dtype)}({self.printer.text(step.value, inner)})"
            if one.guards and not (step.kind == "sum" and _is_zero_if(step.value, shared)):
                value = f"inside ? {value} : {identity(step.kind, arithmetic_type(step.value.dtype))}"
            each.append(f"{step.name}[j] = {combined(step.kind, f'{step.name}[j]', value)};")
        turn = f"turn - {self._overlap.stride} * j"
        row += self.per_row(
            [f"if ({turn} >= 0 && {turn} < {self._overlap.window_loop.extent}) {{", *indented(each), "}"]
        )
        loops = [(var.name, var.extent) for var in one.loops if var != self._overlap.window_loop]
        for name, extent in reversed([("turn", self._overlap.input_rows(self.rows_per_pack)), *loops]):
            row = [
                "#pragma unroll",
                f"for (int {name} = 0; {name} < {extent}; ++{name}) {{",
                *indented(row),
                "}",
            ]
        return [*lines, *row]


def _is_zero_if(value: Expr, zero: list[Expr]) -> bool:
    """Whether it is nothing where what is loaded is zero."""
    return value in zero or (value.op == "mul" and any(_is_zero_if(arg, zero) for arg in value.args))
