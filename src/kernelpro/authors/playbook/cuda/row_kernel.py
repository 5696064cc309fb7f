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

from kernelpro.authors.playbook.codegen.printing import Names
from kernelpro.authors.playbook.cpp.syntax import computed
from kernelpro.authors.playbook.cuda.syntax import OPERATORS, combined, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import Turns, Writing, needed, size
from kernelpro.authors.playbook.design import StageDesign
from kernelpro.authors.playbook.fusion.passes import RowPass, loop_invariants, choose_cached, cached_before
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage, StoreStep

_REGISTERS = 80
"""Numbers that a thread keeps from pass to pass, at most."""
_SHARED = 96 * 1024
"""Bytes of shared memory for the same: two blocks find room on an SM of 228 KB."""
_ON_THE_WAY = 32
"""Numbers that a thread asks for before it uses the first, where the row is not kept."""
_WINDOW = 64
"""Turns of a window that are written out one by one."""


class Sweep(ABC):
    """One kernel: some passes of a stage over its rows."""

    of_row: str
    """What is appended to the names of a row's numbers."""
    across: int
    """Rows of a piece."""

    def __init__(
        self,
        writing: Writing,
        stage: Stage,
        how: StageDesign,
        place: int,
        chosen: list[RowPass],
        split: str = "1",
        known: Sequence[ReduceStep] = (),
        shares: str = "",
        tuned: bool = True,
    ):
        self.writing, self.printer, self.stage, self.how, self.place = (
            writing,
            writing.printer,
            stage,
            how,
            place,
        )
        self.passes, self.split, self.known, self.shares, self.tuned = (
            chosen,
            split,
            list(known),
            shares or split,
            tuned,
        )
        """split: blocks that share a row here; shares: those that did so before, and left their parts of `known`."""
        self.kept: dict[Expr, str] = {}
        self.in_registers = False
        self.shared: list[str] = []
        self.threads = self.tunable("THREADS", how.threads, 64, 1024)

    def tunable(self, name: str, value: int, least: int, most: int) -> str:
        return self.writing.tunable(f"{name}{self.place}", value, least, most) if self.tuned else str(value)

    # --- how threads lie ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def blocks(self) -> str:
        """Blocks for all rows."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads of a row, as designed."""

    @property
    def rows_of_block(self) -> int:
        return self.how.threads // self.lanes * self.across

    @abstractmethod
    def header(self) -> list[str]:
        """Lines that name `LANES`, `lane`, `row`, and `live`: whether there is such a row."""

    @abstractmethod
    def vector(self, one: RowPass) -> int:
        """Elements of a piece."""

    @abstractmethod
    def places(self, one: RowPass | None) -> dict[LoopVar, IndexExpr]:
        """Where a piece of a pass lies; without one: where the row does."""

    @abstractmethod
    def join(self, step: ReduceStep) -> list[str]:
        """From every lane's part of a number to the number, for all lanes."""

    @abstractmethod
    def scan(self, turns: Turns, scans: list[Expr], names: Names) -> list[str]:
        """The pass with running sums or products."""

    @abstractmethod
    def in_shared(self, node: Expr, count: int) -> tuple[str, str, str]:
        """A place in shared memory for a kept value: its declaration, its size in numbers, and how it is called."""

    # --- the kernel --------------------------------------------------------------------------------------------

    def write(self, name: str, parts: int = 0) -> None:
        """`parts`: the most blocks that may share a row."""
        self.writing.begin()
        if self.how.cache_row and not self.known and not parts:
            self._keep()
        names: Names = {}
        body = [line for step in self._wanted() for line in self._collected(step)]
        for number, one in enumerate(self.passes):
            body += self._pass(number, one, names)
            for step in (s for s in one.steps if isinstance(s, ReduceStep) and parts):
                body += self._published(step, parts)
        if not parts:
            body += self._totals(names)
        if self.shared:
            body.insert(0, "extern __shared__ uint4 memory[];")
        memory = f"4 * ({' + '.join(self.shared)})" if self.shared else "0"
        blocks = self.blocks if self.split == "1" else f"{self.blocks} * {self.split}"
        self.writing.add(name, [*self.header(), *body], blocks, self.threads, memory)

    def stand(self, one: RowPass | None = None) -> None:
        self.printer.places, self.printer.of_row = self.places(one), self.of_row

    def for_rows(self, body: list[str]) -> list[str]:
        """For each row of the thread."""
        if not self.of_row:
            return body
        return ["#pragma unroll", f"for (int j = 0; j < {self.across}; ++j) {{", *indented(body), "}"]

    @property
    def row_number(self) -> str:
        return f"row * {self.across} + j" if self.of_row else "row"

    def array(self, kind: str, name: str) -> str:
        return f"{kind} {name}[{self.across}];" if self.of_row else f"{kind} {name};"

    def _wanted(self) -> list[ReduceStep]:
        roots = [step.value for one in self.passes for step in one.steps]
        roots += [total.value for total in self.stage.totals] if self.split == "1" else []
        names = {node.data for root in roots for node in root.walk() if node.op == "row"}
        return [step for step in self.known if step.name in names]

    def _collected(self, step: ReduceStep) -> list[str]:
        """A number of which several blocks have left their parts."""
        kind, name = computed(step.value.dtype), f"{step.name}{self.of_row}"
        part = f"part_{step.name}[s * {self.stage.rows} + {self.row_number}]"
        body = [f"{name} = {identity(step.kind, kind)};"]
        body += [f"for (int s = 0; s < {self.shares}; ++s) {name} = {combined(step.kind, name, part)};"]
        return [self.array(kind, step.name), *self.for_rows(body)]

    def _published(self, step: ReduceStep, most: int) -> list[str]:
        name = self.writing.parts(f"part_{step.name}", most * self.stage.rows, step.value.dtype)
        self.writing.written.add(name)
        text = f"{name}[share * {self.stage.rows} + {self.row_number}] = {step.name}{self.of_row};"
        return ["if (lane == 0) {", *indented(self.for_rows([text])), "}"]

    def _totals(self, names: Names) -> list[str]:
        lines: list[str] = []
        for total in self.stage.totals:
            kind, own = computed(total.value.dtype), dict(names)
            part = self.writing.parts(f"part_{total.name}", self.stage.rows, total.value.dtype)
            self.writing.written.add(part)
            self.stand()
            inner = self.printer.statements([total.value] if total.value.op not in LEAVES else [], own)
            inner += [
                f"{total.name} = {combined(total.kind, total.name, f'{kind}({self.printer.text(total.value, own)})')};"
            ]
            lines += [f"__shared__ {kind} warps_{total.name}[({self.threads} + 31) / 32];"]
            lines += [f"{kind} {total.name} = {identity(total.kind, kind)};"]
            lines += ["if (live && lane == 0) {", *indented(self.for_rows(inner)), "}"]
            lines += [
                f"{total.name} = joined<{OPERATORS[total.kind]}, {self.threads}>({total.name}, warps_{total.name});"
            ]
            lines += [f"if (threadIdx.x == 0) {part}[blockIdx.x] = {total.name};"]
        return lines

    # --- passes ------------------------------------------------------------------------------------------------

    def _pass(self, number: int, one: RowPass, names: Names) -> list[str]:
        self.stand()
        roots = [step.value for step in one.steps]
        before = cached_before(self.passes, number)
        lines = [] if one.guards else self._hoisted(loop_invariants(roots, set(one.loops), before), names)
        if not one.loops:
            return lines + self._once(one, names)
        lines += [f"constexpr int COUNT{number} = ({self._pieces(one)} + SPAN - 1) / SPAN;"]
        lines += self._places_for(one, number)
        turns = self._turns(number, one, before)
        if turns.ahead != turns.count:
            lines += [
                f"constexpr int AHEAD{number} = COUNT{number} < {self._ahead(one)} ? COUNT{number} : {self._ahead(one)};"
            ]
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        for step in reduces:
            kind = computed(step.value.dtype)
            lines.append(self.array(kind, f"{step.name}_part"))
            lines += self.for_rows([f"{step.name}_part{self.of_row} = {identity(step.kind, kind)};"])
        scans = scans_of(one)
        lines += self.scan(turns, scans, names) if scans else turns.lines(names)
        return lines + [line for step in reduces for line in self.join(step)]

    def _once(self, one: RowPass, names: Names) -> list[str]:
        """Steps that are done once a row: numbers by all its lanes, stores by the first."""
        lines, own = list[str](), dict(names)
        reduces = [step for step in one.steps if isinstance(step, ReduceStep)]
        inner = self.printer.statements([step.value for step in reduces if step.value.op not in LEAVES], own)
        inner += [f"{step.name}{self.of_row} = {self.printer.text(step.value, own)};" for step in reduces]
        if reduces:
            lines += [self.array(computed(step.value.dtype), step.name) for step in reduces]
            lines += self.for_rows(inner) if self.of_row else ["{", *indented(inner), "}"]
        stores = RowPass((), [step for step in one.steps if isinstance(step, StoreStep)])
        if stores.steps:
            turns = Turns(
                self.writing,
                stores,
                self.across,
                self.places(None),
                "true",
                "true",
                (),
                "1",
                "1",
                self.of_row,
            )
            lines += ["if (lane == 0) {", *indented(turns.piece(dict(names))), "}"]
        return lines

    def _hoisted(self, nodes: list[Expr], names: Names) -> list[str]:
        """What is the same for the whole row, computed before it is gone through."""
        if not self.of_row:
            return self.printer.statements(nodes, names)
        lines: list[str] = []
        for node in nodes:
            if node in names:
                continue
            own = dict(names)
            body = self.printer.statements([node], own)
            lines += [self.array(computed(node.dtype), f"h{node.number}")]
            lines += self.for_rows([*body, f"h{node.number}[j] = {self.printer.text(node, own)};"])
            names[node] = f"h{node.number}[j]"
        return lines

    def _pieces(self, one: RowPass) -> int:
        return size(one.loops) // (1 if self.of_row else self.vector(one))

    def _turns(self, number: int, one: RowPass, before: set[Expr]) -> Turns:
        count, pieces = f"COUNT{number}", self._pieces(one)
        together = (self.in_registers and (one.cached or before)) or (one.guards and pieces <= _WINDOW)
        ahead = count if together else f"AHEAD{number}"
        return Turns(
            self.writing,
            one,
            self.vector(one),
            self.places(one),
            whole=f"({pieces} % SPAN == 0 && {count} % {ahead} == 0)",
            inside=f"at < {pieces}",
            here=["const Int at = (c + u) * SPAN + start;"],
            count=count,
            ahead=ahead,
            of_row=self.of_row,
            kept={node: self.kept[node] for node in {*before, *one.cached}},
        )

    def _ahead(self, one: RowPass) -> int:
        loads = {
            node
            for step in one.steps
            for node in step.value.walk()
            if node.op == "load" and node.variables & set(one.loops)
        }
        return max(1, _ON_THE_WAY // (self.vector(one) * max(1, len(loads))))

    # --- what is kept between passes ---------------------------------------------------------------------------

    def _keep(self) -> None:
        """In registers if there is room, else in shared memory, else nowhere."""
        choose_cached(self.passes)
        _keep_loads(self.passes, self.writing)
        each = [(node, one) for one in self.passes for node in one.cached]
        held = sum(-(-self._pieces(one) // self.lanes) * self.vector(one) for _, one in each)
        self.in_registers = held <= _REGISTERS
        fits = sum(size(one.loops) for _, one in each) * 4 * self.rows_of_block <= _SHARED and all(
            computed(n.dtype) == "float" for n, _ in each
        )
        if not self.in_registers and not fits:
            for one in self.passes:
                one.cached.clear()

    def _places_for(self, one: RowPass, number: int) -> list[str]:
        lines = []
        for node in one.cached:
            if self.in_registers:
                lines += [f"{computed(node.dtype)} kept{node.number}[COUNT{number}][{self.vector(one)}];"]
                self.kept[node] = f"kept{node.number}[u][j]"
                continue
            line, numbers, self.kept[node] = self.in_shared(node, self._pieces(one) * self.vector(one))
            lines += [line]
            self.shared.append(numbers)
        return lines


def scans_of(one: RowPass) -> list[Expr]:
    found = {node for step in one.steps for node in step.value.walk() if node.op == "scan"}
    return sorted(found, key=lambda node: node.number)


def _keep_loads(made: list[RowPass], writing: Writing) -> None:
    """What a later pass would load again is kept by the first that loads it."""
    for place, later in enumerate(made):
        kept = dict.fromkeys(cached_before(made, place), "")
        for node in sorted(needed([step.value for step in later.steps], kept), key=lambda node: node.number):
            if node.op != "load" or not node.variables & set(later.loops):
                continue
            for number, first in enumerate(made[:place]):
                own = dict.fromkeys(cached_before(made, number), "")
                if (
                    first.loops == later.loops
                    and not first.guards
                    and node in set(needed([s.value for s in first.steps], own))
                ):
                    first.cached.append(node)
                    break
