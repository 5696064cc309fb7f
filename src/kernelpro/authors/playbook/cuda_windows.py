"""Windows that overlap, in CUDA: a thread has several rows one below the other, and reads what their windows share once.

Of a 7 x 7 convolution, eight outputs one below the other need 14 rows of 7 inputs, not 56 of them. The thread goes through
those rows; each row is a turn of the window's loop for every output that it belongs to. Neighbouring threads have
neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.contractions import contraction
from kernelpro.authors.playbook.cpp_words import computed
from kernelpro.authors.playbook.cuda_columns import Columns
from kernelpro.authors.playbook.cuda_turns import Turns
from kernelpro.authors.playbook.cuda_words import combined, identity, indented
from kernelpro.authors.playbook.expressions import LEAVES, Expr
from kernelpro.authors.playbook.indices import Index, Var, unflatten, variable
from kernelpro.authors.playbook.passes import Pass, passes
from kernelpro.authors.playbook.printing import Names
from kernelpro.authors.playbook.stages import Reduce, Stage

_MOST = 1024
"""Turns that are written out, those of all outputs together."""


@dataclass(frozen=True)
class Slide:
    """Going down one row of outputs is going down `stride` turns of a window's loop."""

    down: Var
    along: Var
    stride: int

    def rows(self, outputs: int) -> int:
        """Of inputs, for so many outputs."""
        return self.stride * (outputs - 1) + self.along.extent


def slide(stage: Stage) -> Slide | None:
    """How the windows of a stage overlap from one row of outputs to the next; None where it has none, or none that do, and for
    products."""
    looped = [one for one in passes(stage) if one.loops]
    if len(looped) != 1 or contraction(stage) or stage.totals or not all(isinstance(step, Reduce) for step in looped[0].steps):
        return None
    return next(_slides(stage, looped[0]), None)


def _slides(stage: Stage, one: Pass) -> Iterator[Slide]:
    loads = {node for step in one.steps for node in step.value.walk() if node.op == "load"}
    for down in reversed(stage.outer[:-1]):
        for along in one.loops:
            for index in (node.data[1] for node in loads):
                step, turn = index.coefficient(down), index.coefficient(along)
                apart = index - variable(down) * step - variable(along) * turn
                if 0 < turn <= step < turn * along.extent and step % turn == 0 and not apart.variables & {down, along}:
                    yield Slide(down, along, step // turn)


def outputs(stage: Stage, together: int) -> int:
    """Rows of outputs that a thread takes: up to `together`, as many as divide all of them and can be written out."""
    found = slide(stage)
    if not found:
        return 1
    others = prod(var.extent for one in passes(stage) for var in one.loops if var != found.along)
    fits = (n for n in range(together, 0, -1) if found.down.extent % n == 0 and n * found.rows(n) * others <= _MOST)
    return next(fits, 1)


class Windows(Columns):
    def laid(self) -> tuple[int, str]:
        found = slide(self.stage)
        assert found, "the caller has looked"
        self._slide = found
        return outputs(self.stage, self.how.together), "1"

    def places(self, one: Pass | None) -> dict[Var, Index]:
        row, j = variable(Var("row", self.stage.rows // self.across)), variable(Var("j", self.across))
        extents = [var.extent // (self.across if var == self._slide.down else 1) for var in self.stage.outer]
        found = dict(zip(self.stage.outer, unflatten(row, extents), strict=True))
        found[self._slide.down] = found[self._slide.down] * self.across + j
        if one and one.loops:
            turn = variable(Var("turn", self._slide.rows(self.across)))
            found |= {var: variable(var) for var in one.loops} | {self._slide.along: turn - j * self._slide.stride}
        return found

    def _pass(self, number: int, one: Pass, names: Names) -> list[str]:
        if not one.loops:
            return super()._pass(number, one, names)
        reduces = [step for step in one.steps if isinstance(step, Reduce)]
        lines = []
        for step in reduces:
            kind = computed(step.value.dtype)
            lines += [self.array(kind, step.name), *self.for_rows([f"{step.name}[j] = {identity(step.kind, kind)};"])]
        self.stand(one)
        turns = Turns(self.writing, one, self.across, self.places(one), "true", "true", (), "1", "1", self.of_row)
        shared, own = self._shared(one), dict(names)
        inside = bool(shared and one.guards)
        row = [f"const bool inside = {' && '.join(map(turns.holds, one.guards))};"] if inside else []
        for node in shared:
            name, kind = f"v{node.number}", computed(node.dtype)
            text = self.printer.text(node, own)
            row.append(f"const {kind} {name} = {f'inside ? {text} : {kind}(0)' if inside else text};")
            own[node] = name
        each = self.printer.block([step.value for step in reduces if step.value.op not in LEAVES], inner := dict(own))
        for step in reduces:
            value = f"{computed(step.value.dtype)}({self.printer.text(step.value, inner)})"
            if inside and not (step.kind == "sum" and _vanishes(step.value, shared)):
                value = f"inside ? {value} : {identity(step.kind, computed(step.value.dtype))}"
            each.append(f"{step.name}[j] = {combined(step.kind, f'{step.name}[j]', value)};")
        if one.guards and not inside:
            each = [f"if ({' && '.join(map(turns.holds, one.guards))}) {{", *indented(each), "}"]
        turn = f"turn - {self._slide.stride} * j"
        row += self.for_rows([f"if ({turn} >= 0 && {turn} < {self._slide.along.extent}) {{", *indented(each), "}"])
        loops = [(var.name, var.extent) for var in one.loops if var != self._slide.along]
        for name, extent in reversed([("turn", self._slide.rows(self.across)), *loops]):
            row = ["#pragma unroll", f"for (int {name} = 0; {name} < {extent}; ++{name}) {{", *indented(row), "}"]
        return [*lines, *row]

    def _is_shared(self, index: Index) -> bool:
        """Whether it is the same for all outputs that a row of inputs belongs to; numbers that are loaded for it know the loops by
        their own names."""
        return not self.printer.placed(index).variables & {Var("j", self.across), self._slide.down, self._slide.along}

    def _shared(self, one: Pass) -> list[Expr]:
        """What is loaded once for all of them; nothing where that could be outside of a tensor, and so could what is not."""
        loads = {node.number: node for step in one.steps for node in step.value.walk() if node.op == "load"}
        found = [node for _, node in sorted(loads.items()) if self._is_shared(node.data[1])]
        apart = [node for node in loads.values() if node not in found]
        known = all(self._is_shared(guard.index) for guard in one.guards) and not any(map(self._exceeds, apart))
        return found if known or not one.guards else []

    def _exceeds(self, node: Expr) -> bool:
        """Whether it may lie outside of its tensor, where guards do not hold."""
        low, high = node.data[1].bounds
        return bool(low < 0 or high >= self.writing.tensors[node.data[0]].size)


def _vanishes(value: Expr, zero: list[Expr]) -> bool:
    """Whether it is nothing where what is loaded is zero."""
    return value in zero or (value.op == "mul" and any(_vanishes(arg, zero) for arg in value.args))
