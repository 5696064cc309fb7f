"""The loop of one thread over the elements of a pass: it issues several loads, then computes and stores.

A thread processes packs of `vector` consecutive elements. `loop_indices` expresses the index along each loop
of the stage in the thread's variables (such as `row`, and `pack`, the number of the pack) and in `j`, the
element within the pack. If an address grows by one with j and is a multiple of `vector` at j = 0, the whole
pack is accessed as a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.syntax import CudaPrinter, combine, indented
from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, constant, extents, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep
from kernelpro.authors.playbook.schedule.masked_loads import maximum_over
from kernelpro.authors.playbook.schedule.passes import RowPass


def unflatten_pack(
    pack: IndexExpr, loops: Sequence[LoopVar], vector: int, j: IndexExpr
) -> dict[LoopVar, IndexExpr]:
    """The index along each loop, from the number `pack` of a pack of `vector` elements of the innermost loop
    and the element `j`."""
    if not loops:
        return {}
    *outer, innermost = unflatten(pack, [*extents(loops[:-1]), loops[-1].extent // vector])
    return dict(zip(loops, [*outer, innermost * vector + j], strict=True))


def fit_vector(vector: int, loops: Sequence[LoopVar]) -> int:
    """The largest power of two up to `vector` that divides the innermost loop's extent."""
    while vector > 1 and (not loops or loops[-1].extent % vector):
        vector //= 2
    return vector


@dataclass
class ThreadLoop:
    """One pass of a thread over its packs. Sizes and conditions are C++ expressions."""

    builder: CudaSourceBuilder
    row_pass: RowPass
    vector: int
    """Elements per pack."""
    loop_indices: Mapping[LoopVar, IndexExpr]
    always_in_bounds: str
    """A compile-time condition that all packs are in bounds, so that the kernel needs no check."""
    in_bounds: str
    """The condition that the current pack is in bounds."""
    index_lines: Sequence[str]
    """Lines that declare the variables of `loop_indices` (usually `pack`) for iteration `c + u`."""
    iterations: str
    """Packs per thread."""
    unroll: str
    """Iterations whose loads are issued together; equal to `iterations` if registers cache the row."""
    row_suffix: str = ""
    """Appended to the names of per-row values: `[j]` where a pack spans several rows."""
    constants: frozenset[LoopVar] = frozenset()
    """Variables of `loop_indices` that are constants after unrolling."""
    cached: Mapping[Expr, str] = field(default_factory=dict)
    """Values that later passes reuse, each with the text of its storage."""

    @property
    def printer(self) -> CudaPrinter:
        """The printer of the candidate's source."""
        return self.builder.printer

    def emit(self, names: Names) -> list[str]:
        """The whole loop. A reduction accumulates in the variable `NAME_partial`."""
        inner_names = dict(names)
        loads = self.emit_loads(inner_names)
        return self.outer_loop([*loads, *self.unrolled(self.emit_pack(inner_names))])

    def emit_loads(self, names: Names) -> list[str]:
        """The loads of all unrolled iterations. Adds the loaded and the cached values to `names`."""
        self.bind_printer()
        names.update({node: text for node, text in self.cached.items() if node not in self.row_pass.cached})
        loads = [] if self.row_pass.guards else self._hoistable_loads(names)
        lines, body = [], list[str]()
        for node in loads:
            name, varies = f"v{node.number}", bool(node.variables & self._varying_loops)
            dimension = f"[{self.vector}]" if varies else ""
            initializer = " = {}" if node in self.builder.load_conditions else ""
            lines.append(f"{arithmetic_type(node.dtype)} {name}[{self.unroll}]{dimension}{initializer};")
            if not varies:
                body.append(f"{name}[u] = {self.printer.text(node, names)};")
            elif self.is_vectorizable(node.data[1]):
                body.append(self._vector_load(f"{name}[u]", node, names))
            else:
                body += self.per_element([f"{name}[u][j] = {self.printer.text(node, names)};"])
            names[node] = f"{name}[u][j]" if varies else f"{name}[u]"
        return lines + (self.unrolled(body) if body else [])

    def bind_printer(self) -> None:
        """Make the printer express loop variables by the indices of this loop."""
        self.printer.loop_indices, self.printer.row_suffix = self.loop_indices, self.row_suffix
        self.printer.constants = self.constants

    def outer_loop(self, body: list[str]) -> list[str]:
        """`body` for every group of `unroll` iterations; `c` is the first iteration of the group."""
        if self.unroll == self.iterations:
            return ["{", *indented(["[[maybe_unused]] constexpr int c = 0;", *body]), "}"]
        return [f"for (int c = 0; c < {self.iterations}; c += {self.unroll}) {{", *indented(body), "}"]

    def unrolled(self, body: list[str], predicated: bool = True) -> list[str]:
        """`body` for each iteration `c + u` of a group, if its pack is in bounds."""
        if predicated:
            body = self.if_in_bounds(body)
        inner = [*self.index_lines, *body]
        return ["#pragma unroll", f"for (int u = 0; u < {self.unroll}; ++u) {{", *indented(inner), "}"]

    def if_in_bounds(self, body: list[str]) -> list[str]:
        """`body`, predicated on the pack being in bounds."""
        return [f"if ({self.always_in_bounds} || ({self.in_bounds})) {{", *indented(body), "}"]

    def per_element(self, body: list[str]) -> list[str]:
        """`body` for each element `j` of the pack."""
        return ["#pragma unroll", f"for (int j = 0; j < {self.vector}; ++j) {{", *indented(body), "}"]

    def emit_pack(self, names: Names, element_prologue: Sequence[str] = ()) -> list[str]:
        """Statements that compute and store one loaded pack; `element_prologue` precedes each element."""
        inner_names, row_pass = dict(names), self.row_pass
        roots = [*row_pass.cached, *(root for root in row_pass.roots if root.op not in LEAVES)]
        lines = self.printer.statements(roots, inner_names)
        lines += [
            f"{self.cached[node]} = {self.printer.text(node, inner_names)};" for node in row_pass.cached
        ]
        before, after = [], []
        for number, step in enumerate(row_pass.steps):
            if isinstance(step, ReduceStep):
                name = f"{step.name}_partial{self.row_suffix}"
                value = f"{arithmetic_type(step.value.dtype)}({self.printer.text(step.value, inner_names)})"
                lines.append(f"{name} = {combine(step.kind, name, value)};")
            elif self.is_vectorizable(step.index):
                self.builder.written.add(step.tensor)
                self.builder.vectorized.add(step.tensor)
                before.append(f"{arithmetic_type(step.value.dtype)} stored{number}[{self.vector}];")
                lines.append(f"stored{number}[j] = {self.printer.text(step.value, inner_names)};")
                address = self.address(step.tensor, step.index, inner_names)
                after.append(f"store_vector({address}, stored{number});")
            else:
                lines.append(self.builder.store_element(step, inner_names))
        if row_pass.guards:
            condition = " && ".join(self.guard_condition(guard) for guard in row_pass.guards)
            lines = [f"if ({condition}) {{", *indented(lines), "}"]
        prologue = ["{", *indented(element_prologue), "}"] if element_prologue else []
        return [*before, *self.per_element([*prologue, *lines]), *after]

    def guard_condition(self, guard: Guard) -> str:
        """The condition under which a guard holds, without comparisons that are always true."""
        text, (low, high) = self.printer.index(guard.index), guard.index.bounds
        conditions = [f"{text} >= 0"] if low < 0 else []
        conditions += [f"{text} < {guard.size}"] if high >= guard.size else []
        return " && ".join(conditions) or "true"

    # --- addresses --------------------------------------------------------------------------------

    def is_vectorizable(self, index: IndexExpr) -> bool:
        """Whether the pack's elements are contiguous and aligned to the size of the pack."""
        resolved = self.printer.resolve(index)
        base = resolved - variable(self._j)
        if self.vector == 1 or resolved.coefficient(self._j) != 1 or self._varies(base):
            return False
        return all(factor % self.vector == 0 for _, factor in base.terms) and base.constant % self.vector == 0

    @property
    def _j(self) -> LoopVar:
        return LoopVar("j", self.vector)

    @property
    def _varying_loops(self) -> set[LoopVar]:
        """Loops whose index changes within a pack."""
        return {var for var, index in self.loop_indices.items() if self._j in index.variables}

    def _varies(self, index: IndexExpr) -> bool:
        """Whether the index changes within a pack. Indirect indices still contain the stage's loop
        variables."""
        return bool(index.variables & (self._varying_loops | {self._j}))

    def address(self, tensor: str, index: IndexExpr, names: Names) -> str:
        """The address of the pack's first element."""
        base = self.printer.resolve(index) - variable(self._j)
        return f"{self.printer.pointer(tensor)} + {self.printer.resolved(base, names)}"

    def _vector_load(self, target: str, node: Expr, names: Names) -> str:
        """A vectorized load; predicated if a mask discards whole packs."""
        tensor, index = node.data
        self.builder.vectorized.add(tensor)
        ends = (constant(0), constant(self.vector - 1))
        bounds = [
            maximum_over(self.printer.resolve(part), self._j, *ends)
            for part in self.builder.load_conditions.get(node, ())
        ]
        conditions = sorted(f"{self.printer.resolved(bound)} >= 0" for bound in bounds if bound is not None)
        predicate = f"if ({' && '.join(conditions)}) " if conditions else ""
        return f"{predicate}load_vector({target}, {self.address(tensor, index, names)});"

    def _hoistable_loads(self, names: Names) -> list[Expr]:
        """Loads that can be issued early because their addresses are always valid. Loads of indices come
        first."""
        inner = set(self.row_pass.loops) | self._varying_loops
        loads = {}
        for node in nodes_to_compute([*self.row_pass.cached, *self.row_pass.roots], names):
            if node.op == "load" and node.variables & inner:
                low, high = node.data[1].bounds
                if low >= 0 and high < self.builder.tensors[node.data[0]].size:
                    loads[node.number] = node
        return [loads[number] for number in sorted(loads)]


def nodes_to_compute(roots: Iterable[Expr], names: Mapping[Expr, str]) -> Iterator[Expr]:
    """Every node below the roots that has no name yet. Nodes below named ones are left out."""
    visited, pending = set[Expr](), list(roots)
    while pending:
        node = pending.pop()
        if node not in visited and node not in names:
            visited.add(node)
            yield node
            pending += node.operands
