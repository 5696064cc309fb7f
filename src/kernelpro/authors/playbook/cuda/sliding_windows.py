"""Windows that overlap, in CUDA: a thread has several rows one below the other, and reads what their windows share once.

Of a 7 x 7 convolution, eight outputs one below the other need 14 rows of 7 inputs, not 56 of them. The thread goes through
those rows; each row is a turn of the window's loop for every output that it belongs to. Neighbouring threads have
neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.codegen.printing import Names
from kernelpro.authors.playbook.cpp.syntax import computed
from kernelpro.authors.playbook.cuda.across_rows import Columns
from kernelpro.authors.playbook.cuda.syntax import combined, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import Turns
from kernelpro.authors.playbook.fusion.contractions import find_contraction
from kernelpro.authors.playbook.fusion.passes import RowPass, split_into_passes
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, unflatten, variable
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage

_MOST = 1024
"""Turns that are written out, those of all outputs together."""


@dataclass(frozen=True)
class Slide:
    """Going down one row of outputs is going down `stride` turns of a window's loop."""

    down: LoopVar
    along: LoopVar
    stride: int

    def rows(self, outputs: int) -> int:
        """Of inputs, for so many outputs."""
        return self.stride * (outputs - 1) + self.along.extent

    def shares(self, index: IndexExpr) -> bool:
        """Whether it is the same for all outputs that a row of inputs belongs to."""
        step, turn = index.coefficient(self.down), index.coefficient(self.along)
        apart = index - variable(self.down) * step - variable(self.along) * turn
        return step == self.stride * turn and not apart.variables & {self.down, self.along}


def slide(stage: Stage) -> Slide | None:
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
    return next(_slides(stage, looped[0]), None)


def _slides(stage: Stage, one: RowPass) -> Iterator[Slide]:
    """Where guards are the same for all outputs, and so is whatever has to be guarded."""
    guarded = {var for guard in one.guards for var in guard.index.variables} & set(stage.outer)
    for down in reversed(stage.outer[:-1]):
        for along in one.loops:
            for index in (node.data[1] for node in _loads(one)):
                step, turn = index.coefficient(down), index.coefficient(along)
                if not 0 < turn <= step < turn * along.extent or step % turn:
                    continue
                found = Slide(down, along, step // turn)
                kept = all(found.shares(n.data[1]) or not n.variables & guarded for n in _loads(one))
                if found.shares(index) and kept and all(found.shares(guard.index) for guard in one.guards):
                    yield found


def _loads(one: RowPass) -> list[Expr]:
    found = {node.number: node for step in one.steps for node in step.value.walk() if node.op == "load"}
    return [found[number] for number in sorted(found)]


def outputs(stage: Stage, together: int) -> int:
    """Rows of outputs that a thread takes: up to `together`, as many as divide all of them and can be written out."""
    found = slide(stage)
    if not found:
        return 1
    others = prod(var.extent for one in split_into_passes(stage) for var in one.loops if var != found.along)
    fits = (
        n
        for n in range(together, 0, -1)
        if found.down.extent % n == 0 and n * found.rows(n) * others <= _MOST
    )
    return next(fits, 1)


class Windows(Columns):
    def laid(self) -> tuple[int, str]:
        found = slide(self.stage)
        assert found, "the caller has looked"
        self._slide = found
        return outputs(self.stage, self.how.coarsening), "1"

    def places(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        row, j = variable(LoopVar("row", self.stage.rows // self.across)), variable(LoopVar("j", self.across))
        extents = [var.extent // (self.across if var == self._slide.down else 1) for var in self.stage.outer]
        found = dict(zip(self.stage.outer, unflatten(row, extents), strict=True))
        found[self._slide.down] = found[self._slide.down] * self.across + j
        if one and one.loops:
            turn = variable(LoopVar("turn", self._slide.rows(self.across)))
            found |= {var: variable(var) for var in one.loops} | {
                self._slide.along: turn - j * self._slide.stride
            }
        return found

    def _pass(self, number: int, one: RowPass, names: Names) -> list[str]:
        if not one.loops:
            return super()._pass(number, one, names)
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        lines = []
        for step in reduces:
            kind = computed(step.value.dtype)
            lines += [
                self.array(kind, step.name),
                *self.for_rows([f"{step.name}[j] = {identity(step.kind, kind)};"]),
            ]
        self.stand(one)
        turns = Turns(
            self.writing, one, self.across, self.places(one), "true", "true", (), "1", "1", self.of_row
        )
        shared, own = [node for node in _loads(one) if self._slide.shares(node.data[1])], dict(names)
        row = [f"const bool inside = {' && '.join(map(turns.holds, one.guards))};"] if one.guards else []
        for node in shared:
            name, kind = f"v{node.number}", computed(node.dtype)
            text = self.printer.text(node, own)
            row.append(f"const {kind} {name} = {f'inside ? {text} : {kind}(0)' if one.guards else text};")
            own[node] = name
        each = self.printer.statements(
            [step.value for step in reduces if step.value.op not in LEAVES], inner := dict(own)
        )
        for step in reduces:
            value = f"{computed(step.value.dtype)}({self.printer.text(step.value, inner)})"
            if one.guards and not (step.kind == "sum" and _vanishes(step.value, shared)):
                value = f"inside ? {value} : {identity(step.kind, computed(step.value.dtype))}"
            each.append(f"{step.name}[j] = {combined(step.kind, f'{step.name}[j]', value)};")
        turn = f"turn - {self._slide.stride} * j"
        row += self.for_rows(
            [f"if ({turn} >= 0 && {turn} < {self._slide.along.extent}) {{", *indented(each), "}"]
        )
        loops = [(var.name, var.extent) for var in one.loops if var != self._slide.along]
        for name, extent in reversed([("turn", self._slide.rows(self.across)), *loops]):
            row = [
                "#pragma unroll",
                f"for (int {name} = 0; {name} < {extent}; ++{name}) {{",
                *indented(row),
                "}",
            ]
        return [*lines, *row]


def _vanishes(value: Expr, zero: list[Expr]) -> bool:
    """Whether it is nothing where what is loaded is zero."""
    return value in zero or (value.op == "mul" and any(_vanishes(arg, zero) for arg in value.args))
