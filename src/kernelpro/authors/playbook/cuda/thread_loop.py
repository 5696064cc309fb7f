"""What one thread does in a pass over the elements of its rows: loads first, several of them on the way at once, then the rest.

A thread takes pieces of `vector` neighbouring elements. Which elements a piece has is said by `places`: an index for each
loop variable, made of what the thread knows (its row, `at`, the number of the piece) and of `j`, the element within the
piece. Addresses that grow by one with j, and are multiples of `vector` without it, are accessed as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kernelpro.authors.playbook.codegen.printing import Names
from kernelpro.authors.playbook.cpp.syntax import computed
from kernelpro.authors.playbook.cuda.syntax import CudaPrinter, combined, indented
from kernelpro.authors.playbook.fusion.hidden import Predicate, maximum_over
from kernelpro.authors.playbook.fusion.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr, indirect_operands
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, constant, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Guard, Program, ReduceStep, StoreStep, Tensor


@dataclass
class Kernel:
    """One kernel that is ready, and how it is launched."""

    name: str
    body: list[str]
    blocks: str
    threads: str
    used: list[str]
    """Tensors that it is given."""
    written: set[str]
    shared: str = "0"
    """Bytes of dynamic shared memory."""


class Writing:
    """What the stages of one program share while they are written."""

    def __init__(self, program: Program, math_mode: str, pointers: Mapping[str, str]):
        self.printer = CudaPrinter(math_mode, pointers)
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.constraints: list[str] = []
        """Between tunables: what must hold of them."""
        self.kernels: list[Kernel] = []
        self.scratch: list[Tensor] = []
        """Temporaries that the kernels need beyond the program's own."""
        self.aligned: set[str] = set()
        """Tensors that are accessed by several elements at once."""
        self.written: set[str] = set()
        """Tensors that the kernel at hand writes."""
        self.hidden: dict[Expr, Predicate] = {}
        """Loads of the stage at hand that are needed somewhere only."""

    def pointer(self, tensor: str) -> str:
        return self.printer.pointer(tensor)

    def begin(self) -> None:
        """A new kernel."""
        self.written = set()

    def add(self, name: str, body: list[str], blocks: str, threads: str, shared: str = "0") -> None:
        words = set(re.findall(r"\w+", "\n".join(body)))
        used = [tensor for tensor in self.tensors if self.pointer(tensor) in words]
        self.kernels.append(Kernel(name, body, blocks, threads, used, self.written, shared))

    def tunable(self, name: str, value: int, least: int, most: int) -> str:
        """A constant of the kernels that may be searched: half of it and twice as much are worth a try."""
        self.tunables[name] = (
            value,
            sorted({value, *(near for near in (value // 2, value * 2) if least <= near <= most)}),
        )
        return name

    def parts(self, name: str, size: int, dtype: str) -> str:
        """A temporary of so many numbers, of the type in which `dtype` is computed."""
        dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        if name not in self.tensors:
            self.tensors[name] = Tensor(name, (size,), dtype, "temporary")
            self.printer.pointers[name] = name
            self.scratch.append(self.tensors[name])
        return name

    def store(self, step: StoreStep, names: Names) -> list[str]:
        """One element."""
        self.written.add(step.tensor)
        held = self.tensors[step.tensor].dtype
        index, text = self.printer.index(step.index, names), self.printer.text(step.value, names)
        return [self.printer.stored(step.tensor, index, held, text, step.value.dtype)]


def spread(flat: IndexExpr, loops: Sequence[LoopVar], vector: int, j: IndexExpr) -> dict[LoopVar, IndexExpr]:
    """The loops' variables from the number of a piece, `vector` elements of the innermost loop making one."""
    if not loops:
        return {}
    *lead, last = unflatten(flat, [*(var.extent for var in loops[:-1]), loops[-1].extent // vector])
    return dict(zip(loops, [*lead, last * vector + j], strict=True))


def size(loops: Iterable[LoopVar]) -> int:
    return prod(var.extent for var in loops)


def fitting(vector: int, loops: Sequence[LoopVar]) -> int:
    """The greatest power of two up to `vector` that divides the innermost loop."""
    while vector > 1 and (not loops or loops[-1].extent % vector):
        vector //= 2
    return vector


@dataclass
class Turns:
    """A thread's turns in one pass."""

    writing: Writing
    one: RowPass
    vector: int
    places: Mapping[LoopVar, IndexExpr]
    whole: str
    """A constant condition: all pieces are there, and none needs to be asked for."""
    inside: str
    """Whether piece `at` is there."""
    here: Sequence[str]
    """Lines that name what `places` speak of, in turn `c + u`: `at` as a rule, the number of the piece."""
    count: str
    """Turns of a thread."""
    ahead: str
    """Turns whose loads are on the way together; `count` where all are, and values are kept in registers."""
    of_row: str = ""
    """What is appended to numbers of the row: `[j]` where a piece lies across rows."""
    kept: Mapping[Expr, str] = field(default_factory=dict)
    """Where values are that go from pass to pass."""

    @property
    def printer(self) -> CudaPrinter:
        return self.writing.printer

    def lines(self, names: Names) -> list[str]:
        """Reductions are gathered in variables `NAME_part`."""
        own = dict(names)
        loads = self.loads(own)
        return self.in_steps([*loads, *self.over_turns(self.piece(own))])

    def loads(self, names: Names) -> list[str]:
        """Lines that load for all turns of a step; `names` grows by what they load and by what is kept."""
        self.begin()
        names.update({node: text for node, text in self.kept.items() if node not in self.one.cached})
        loads = [] if self.one.guards else self._early(names)
        body: list[str] = []
        for node in loads:
            name = f"v{node.number}"
            if not node.variables & self._moving:
                body.append(f"{name}[u] = {self.printer.text(node, names)};")
            elif self.is_whole(node.data[1]):
                body.append(self._read(f"{name}[u]", node, names))
            else:
                body += self.over_elements([f"{name}[u][j] = {self.printer.text(node, names)};"])
            names[node] = f"{name}[u][j]" if node.variables & self._moving else f"{name}[u]"
        each = {node: f"[{self.vector}]" if node.variables & self._moving else "" for node in loads}
        nothing = {node: " = {}" if node in self.writing.hidden else "" for node in loads}
        lines = [
            f"{computed(node.dtype)} v{node.number}[{self.ahead}]{each[node]}{nothing[node]};"
            for node in loads
        ]
        return lines + (self.over_turns(body) if body else [])

    def begin(self) -> None:
        self.printer.places, self.printer.of_row = self.places, self.of_row

    def in_steps(self, body: list[str]) -> list[str]:
        if self.ahead == self.count:
            return ["{", *indented(["[[maybe_unused]] constexpr int c = 0;", *body]), "}"]
        return [f"for (int c = 0; c < {self.count}; c += {self.ahead}) {{", *indented(body), "}"]

    def over_turns(self, body: list[str], conditional: bool = True) -> list[str]:
        if conditional:
            body = [f"if ({self.whole} || ({self.inside})) {{", *indented(body), "}"]
        inner = [*self.here, *body]
        return ["#pragma unroll", f"for (int u = 0; u < {self.ahead}; ++u) {{", *indented(inner), "}"]

    def over_elements(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int j = 0; j < {self.vector}; ++j) {{", *indented(body), "}"]

    def piece(self, names: Names, first: Sequence[str] = ()) -> list[str]:
        """Everything that is done with one piece whose loads have arrived; for each element, `first` comes first."""
        own, one = dict(names), self.one
        lines = self.printer.statements(
            [*one.cached, *(s.value for s in one.steps if s.value.op not in LEAVES)], own
        )
        lines += [f"{self.kept[node]} = {self.printer.text(node, own)};" for node in one.cached]
        before, after = [], []
        for place, step in enumerate(one.steps):
            if isinstance(step, ReduceStep):
                name = f"{step.name}_part{self.of_row}"
                value = f"{computed(step.value.dtype)}({self.printer.text(step.value, own)})"
                lines.append(f"{name} = {combined(step.kind, name, value)};")
            elif self.is_whole(step.index):
                self.writing.written.add(step.tensor)
                self.writing.aligned.add(step.tensor)
                before.append(f"{computed(step.value.dtype)} w{place}[{self.vector}];")
                lines.append(f"w{place}[j] = {self.printer.text(step.value, own)};")
                after.append(f"write({self.address(step.tensor, step.index, own)}, w{place});")
            else:
                lines += self.writing.store(step, own)
        if one.guards:
            lines = [
                f"if ({' && '.join(self.holds(guard) for guard in one.guards)}) {{",
                *indented(lines),
                "}",
            ]
        opened = ["{", *indented(first), "}"] if first else []
        return [*before, *self.over_elements([*opened, *lines]), *after]

    def holds(self, guard: Guard) -> str:
        text, (low, high) = self.printer.index(guard.index), guard.index.bounds
        below = f"{text} >= 0" if low < 0 else ""
        return (
            " && ".join(filter(None, [below, f"{text} < {guard.size}" if high >= guard.size else ""]))
            or "true"
        )

    # --- addresses ---------------------------------------------------------------------------------------------

    def is_whole(self, index: IndexExpr) -> bool:
        """Whether the piece's elements lie side by side from a multiple of their number on."""
        placed = self.printer.placed(index)
        rest = placed - variable(self._j)
        if self.vector == 1 or placed.coefficient(self._j) != 1 or self._moves(rest):
            return False
        return all(factor % self.vector == 0 for _, factor in rest.terms) and rest.constant % self.vector == 0

    @property
    def _j(self) -> LoopVar:
        return LoopVar("j", self.vector)

    @property
    def _moving(self) -> set[LoopVar]:
        """Loops that go on within the piece."""
        return {var for var, place in self.places.items() if self._j in place.variables}

    def _moves(self, index: IndexExpr) -> bool:
        """Whether it changes within the piece; numbers that are loaded for it know the loops by their own names."""
        return bool(index.variables & (self._moving | {self._j}))

    def address(self, tensor: str, index: IndexExpr, names: Names) -> str:
        rest = self.printer.placed(index) - variable(self._j)
        return f"{self.printer.pointer(tensor)} + {super(CudaPrinter, self.printer).index(rest, names)}"

    def _read(self, into: str, node: Expr, names: Names) -> str:
        tensor, index = node.data
        self.writing.aligned.add(tensor)
        ends = (constant(0), constant(self.vector - 1))
        found = [
            maximum_over(self.printer.placed(part), self._j, *ends) for part in self.writing.hidden.get(node, ())
        ]
        shown = sorted(
            f"{super(CudaPrinter, self.printer).index(part)} >= 0" for part in found if part is not None
        )
        where = f"if ({' && '.join(shown)}) " if shown else ""
        return f"{where}read({into}, {self.address(tensor, index, names)});"

    def _early(self, names: Names) -> list[Expr]:
        """Loads of the pass's elements that nothing forbids to do early, indices before what they lead to."""
        inner = set(self.one.loops) | self._moving
        found = {}
        for node in needed([*self.one.cached, *(step.value for step in self.one.steps)], names):
            if node.op == "load" and node.variables & inner:
                low, high = node.data[1].bounds
                if low >= 0 and high < self.writing.tensors[node.data[0]].size:
                    found[node.number] = node
        return [found[number] for number in sorted(found)]


def needed(roots: Iterable[Expr], names: Mapping[Expr, str]) -> Iterator[Expr]:
    """Every node that must be computed, down to what has a name."""
    done, waiting = set[Expr](), list(roots)
    while waiting:
        node = waiting.pop()
        if node in done or node in names:
            continue
        done.add(node)
        yield node
        waiting += [*node.args, *indirect_operands(node)]
