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

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.syntax import CudaPrinter, combined, indented
from kernelpro.authors.playbook.schedule.masked_loads import Predicate, maximum_over
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, constant, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Guard, Program, ReduceStep, StoreStep, Tensor


@dataclass
class CudaKernel:
    """One kernel that is ready, and how it is launched."""

    name: str
    body: list[str]
    grid: str
    threads: str
    tensors: list[str]
    """Tensors that it is given."""
    written: set[str]
    shared_bytes: str = "0"
    """Bytes of dynamic shared memory."""


class CudaSourceBuilder:
    """What the stages of one program share while they are written."""

    def __init__(self, program: Program, math_mode: str, pointers: Mapping[str, str]):
        self.printer = CudaPrinter(math_mode, pointers)
        self.tensors = {tensor.name: tensor for tensor in program.tensors}
        self.tunables: dict[str, tuple[int, Sequence[int]]] = {}
        self.constraints: list[str] = []
        """Between tunables: what must hold of them."""
        self.kernels: list[CudaKernel] = []
        self.temporaries: list[Tensor] = []
        """Temporaries that the kernels need beyond the program's own."""
        self.vectorized: set[str] = set()
        """Tensors that are accessed by several elements at once."""
        self.written: set[str] = set()
        """Tensors that the kernel at hand writes."""
        self.load_conditions: dict[Expr, Predicate] = {}
        """Loads of the stage at hand that are needed somewhere only."""

    def pointer(self, tensor: str) -> str:
        return self.printer.pointer(tensor)

    def begin_kernel(self) -> None:
        """A new kernel."""
        self.written = set()

    def add_kernel(self, name: str, body: list[str], grid: str, threads: str, shared_bytes: str = "0") -> None:
        words = set(re.findall(r"\w+", "\n".join(body)))
        tensors = [tensor for tensor in self.tensors if self.pointer(tensor) in words]
        self.kernels.append(CudaKernel(name, body, grid, threads, tensors, self.written, shared_bytes))

    def tunable(self, name: str, value: int, minimum: int, maximum: int) -> str:
        """A constant of the kernels that may be searched: half of it and twice as much are worth a try."""
        self.tunables[name] = (
            value,
            sorted({value, *(near for near in (value // 2, value * 2) if minimum <= near <= maximum)}),
        )
        return name

    def add_temporary(self, name: str, count: int, dtype: str) -> str:
        """A temporary of so many numbers, of the type in which `dtype` is computed."""
        dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        if name not in self.tensors:
            self.tensors[name] = Tensor(name, (count,), dtype, "temporary")
            self.printer.pointers[name] = name
            self.temporaries.append(self.tensors[name])
        return name

    def store_element(self, step: StoreStep, names: Names) -> list[str]:
        """One element."""
        self.written.add(step.tensor)
        stored_dtype = self.tensors[step.tensor].dtype
        index, text = self.printer.index(step.index, names), self.printer.text(step.value, names)
        return [self.printer.stored(step.tensor, index, stored_dtype, text, step.value.dtype)]


def unflatten_pack(pack: IndexExpr, loops: Sequence[LoopVar], vector: int, j: IndexExpr) -> dict[LoopVar, IndexExpr]:
    """The loops' variables from the number of a piece, `vector` elements of the innermost loop making one."""
    if not loops:
        return {}
    *lead, last = unflatten(pack, [*(var.extent for var in loops[:-1]), loops[-1].extent // vector])
    return dict(zip(loops, [*lead, last * vector + j], strict=True))


def size(loops: Iterable[LoopVar]) -> int:
    return prod(var.extent for var in loops)


def fit_vector(vector: int, loops: Sequence[LoopVar]) -> int:
    """The greatest power of two up to `vector` that divides the innermost loop."""
    while vector > 1 and (not loops or loops[-1].extent % vector):
        vector //= 2
    return vector


@dataclass
class ThreadLoop:
    """A thread's turns in one pass."""

    builder: CudaSourceBuilder
    pass_: RowPass
    vector: int
    loop_indices: Mapping[LoopVar, IndexExpr]
    always_in_bounds: str
    """A constant condition: all pieces are there, and none needs to be asked for."""
    in_bounds: str
    """Whether piece `at` is there."""
    index_lines: Sequence[str]
    """Lines that name what `places` speak of, in turn `c + u`: `at` as a rule, the number of the piece."""
    iterations: str
    """Turns of a thread."""
    unroll: str
    """Turns whose loads are on the way together; `count` where all are, and values are kept in registers."""
    row_suffix: str = ""
    """What is appended to numbers of the row: `[j]` where a piece lies across rows."""
    cached: Mapping[Expr, str] = field(default_factory=dict)
    """Where values are that go from pass to pass."""

    @property
    def printer(self) -> CudaPrinter:
        return self.builder.printer

    def emit(self, names: Names) -> list[str]:
        """Reductions are gathered in variables `NAME_part`."""
        inner_names = dict(names)
        loads = self.emit_loads(inner_names)
        return self.outer_loop([*loads, *self.unrolled(self.emit_pack(inner_names))])

    def emit_loads(self, names: Names) -> list[str]:
        """Lines that load for all turns of a step; `names` grows by what they load and by what is kept."""
        self.bind_printer()
        names.update({node: text for node, text in self.cached.items() if node not in self.pass_.cached})
        loads = [] if self.pass_.guards else self._hoistable_loads(names)
        body: list[str] = []
        for node in loads:
            name = f"v{node.number}"
            if not node.variables & self._varying_loops:
                body.append(f"{name}[u] = {self.printer.text(node, names)};")
            elif self.is_vectorizable(node.data[1]):
                body.append(self._vector_load(f"{name}[u]", node, names))
            else:
                body += self.per_element([f"{name}[u][j] = {self.printer.text(node, names)};"])
            names[node] = f"{name}[u][j]" if node.variables & self._varying_loops else f"{name}[u]"
        pack_dim = {node: f"[{self.vector}]" if node.variables & self._varying_loops else "" for node in loads}
        initializer = {node: " = {}" if node in self.builder.load_conditions else "" for node in loads}
        lines = [
            f"{arithmetic_type(node.dtype)} v{node.number}[{self.unroll}]{pack_dim[node]}{initializer[node]};"
            for node in loads
        ]
        return lines + (self.unrolled(body) if body else [])

    def bind_printer(self) -> None:
        self.printer.loop_indices, self.printer.row_suffix = self.loop_indices, self.row_suffix

    def outer_loop(self, body: list[str]) -> list[str]:
        if self.unroll == self.iterations:
            return ["{", *indented(["[[maybe_unused]] constexpr int c = 0;", *body]), "}"]
        return [f"for (int c = 0; c < {self.iterations}; c += {self.unroll}) {{", *indented(body), "}"]

    def unrolled(self, body: list[str], predicated: bool = True) -> list[str]:
        if predicated:
            body = [f"if ({self.always_in_bounds} || ({self.in_bounds})) {{", *indented(body), "}"]
        inner = [*self.index_lines, *body]
        return ["#pragma unroll", f"for (int u = 0; u < {self.unroll}; ++u) {{", *indented(inner), "}"]

    def per_element(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int j = 0; j < {self.vector}; ++j) {{", *indented(body), "}"]

    def emit_pack(self, names: Names, element_prologue: Sequence[str] = ()) -> list[str]:
        """Everything that is done with one piece whose loads have arrived; for each element, `first` comes first."""
        inner_names, pass_ = dict(names), self.pass_
        lines = self.printer.statements(
            [*pass_.cached, *(s.value for s in pass_.steps if s.value.op not in LEAVES)], inner_names
        )
        lines += [f"{self.cached[node]} = {self.printer.text(node, inner_names)};" for node in pass_.cached]
        before, after = [], []
        for number, step in enumerate(pass_.steps):
            if isinstance(step, ReduceStep):
                name = f"{step.name}_part{self.row_suffix}"
                value = f"{arithmetic_type(step.value.dtype)}({self.printer.text(step.value, inner_names)})"
                lines.append(f"{name} = {combined(step.kind, name, value)};")
            elif self.is_vectorizable(step.index):
                self.builder.written.add(step.tensor)
                self.builder.vectorized.add(step.tensor)
                before.append(f"{arithmetic_type(step.value.dtype)} w{number}[{self.vector}];")
                lines.append(f"w{number}[j] = {self.printer.text(step.value, inner_names)};")
                after.append(f"write({self.address(step.tensor, step.index, inner_names)}, w{number});")
            else:
                lines += self.builder.store_element(step, inner_names)
        if pass_.guards:
            lines = [
                f"if ({' && '.join(self.guard_condition(guard) for guard in pass_.guards)}) {{",
                *indented(lines),
                "}",
            ]
        prologue = ["{", *indented(element_prologue), "}"] if element_prologue else []
        return [*before, *self.per_element([*prologue, *lines]), *after]

    def guard_condition(self, guard: Guard) -> str:
        text, (low, high) = self.printer.index(guard.index), guard.index.bounds
        below = f"{text} >= 0" if low < 0 else ""
        return (
            " && ".join(filter(None, [below, f"{text} < {guard.size}" if high >= guard.size else ""]))
            or "true"
        )

    # --- addresses ---------------------------------------------------------------------------------------------

    def is_vectorizable(self, index: IndexExpr) -> bool:
        """Whether the piece's elements lie side by side from a multiple of their number on."""
        resolved = self.printer.resolve(index)
        rest = resolved - variable(self._j)
        if self.vector == 1 or resolved.coefficient(self._j) != 1 or self._varies(rest):
            return False
        return all(factor % self.vector == 0 for _, factor in rest.terms) and rest.constant % self.vector == 0

    @property
    def _j(self) -> LoopVar:
        return LoopVar("j", self.vector)

    @property
    def _varying_loops(self) -> set[LoopVar]:
        """Loops that go on within the piece."""
        return {var for var, place in self.loop_indices.items() if self._j in place.variables}

    def _varies(self, index: IndexExpr) -> bool:
        """Whether it changes within the piece; numbers that are loaded for it know the loops by their own names."""
        return bool(index.variables & (self._varying_loops | {self._j}))

    def address(self, tensor: str, index: IndexExpr, names: Names) -> str:
        rest = self.printer.resolve(index) - variable(self._j)
        return f"{self.printer.pointer(tensor)} + {super(CudaPrinter, self.printer).index(rest, names)}"

    def _vector_load(self, target: str, node: Expr, names: Names) -> str:
        tensor, index = node.data
        self.builder.vectorized.add(tensor)
        ends = (constant(0), constant(self.vector - 1))
        found = [
            maximum_over(self.printer.resolve(part), self._j, *ends) for part in self.builder.load_conditions.get(node, ())
        ]
        shown = sorted(
            f"{super(CudaPrinter, self.printer).index(part)} >= 0" for part in found if part is not None
        )
        where = f"if ({' && '.join(shown)}) " if shown else ""
        return f"{where}read({target}, {self.address(tensor, index, names)});"

    def _hoistable_loads(self, names: Names) -> list[Expr]:
        """Loads of the pass's elements that nothing forbids to do early, indices before what they lead to."""
        inner = set(self.pass_.loops) | self._varying_loops
        loads = {}
        for node in nodes_to_compute([*self.pass_.cached, *(step.value for step in self.pass_.steps)], names):
            if node.op == "load" and node.variables & inner:
                low, high = node.data[1].bounds
                if low >= 0 and high < self.builder.tensors[node.data[0]].size:
                    loads[node.number] = node
        return [loads[number] for number in sorted(loads)]


def nodes_to_compute(roots: Iterable[Expr], names: Mapping[Expr, str]) -> Iterator[Expr]:
    """Every node that must be computed, down to what has a name."""
    done, pending = set[Expr](), list(roots)
    while pending:
        node = pending.pop()
        if node in done or node in names:
            continue
        done.add(node)
        yield node
        pending += node.operands
