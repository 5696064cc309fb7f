"""One operand of a product in CUDA: how its tiles lie in shared memory, and how they are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.syntax import STORED, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, CudaSourceBuilder
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import Expr, itemsize
from kernelpro.authors.playbook.ir.indices import (IndexExpr, LoopVar, iterations, unflatten_loops, variable)
from kernelpro.authors.playbook.ir.stages import Guard


@dataclass(frozen=True)
class MatmulOperand:
    """One operand, and how its tiles are fetched."""

    builder: CudaSourceBuilder
    name: str
    value: Expr
    tile_side: str
    """The tile's rows or columns: a constant of the kernel."""
    first_index: str
    loops: tuple[LoopVar, ...]
    depth: tuple[LoopVar, ...]
    batch: dict[LoopVar, IndexExpr]
    tensor_cores: bool
    guards: tuple[Guard, ...] = ()

    @property
    def element_type(self) -> str:
        """Of the tile's elements."""
        return STORED[self.value.dtype] if self.tensor_cores else arithmetic_type(self.value.dtype)

    @cached_property
    def _access(self) -> tuple[bool, int]:
        """Whether pieces lie along the depth, and how many elements they have."""
        best = (1, False, True)
        for deeply, loops in ((True, self.depth), (False, self.loops)):
            for node in (node for node in self.value.walk() if node.op == "load"):
                vector = 1 if self.guards else 16 // max(2, itemsize(node.dtype))
                while vector > 1 and (
                    iterations(loops) % vector or not self._thread_loop(deeply, vector).is_vectorizable(node.data[1])
                ):
                    vector //= 2
                best = max(best, (vector, node.data[1].coefficient(loops[-1]) == 1, deeply))
        return best[2], best[0]

    @property
    def loads_along_k(self) -> bool:
        return self._access[0]

    @property
    def vector(self) -> int:
        return self._access[1]

    @property
    def stored_along_k(self) -> bool:
        """Tensor cores take tiles as they lie in memory, threads take lines of rows or columns."""
        return self.loads_along_k and self.tensor_cores

    @property
    def padding(self) -> int:
        """Elements behind each line, so that neighbouring lines begin in other banks."""
        wide_words = self.tensor_cores and not self.stored_along_k and self.value.dtype == "float32"
        return 8 if wide_words else 16 // itemsize(self.value.dtype) if self.tensor_cores else 4

    @property
    def is_plain_load(self) -> bool:
        """Nothing but a tensor's elements, at addresses that are known without it."""
        return self.value.op == "load" and not self.guards and not self.value.operands

    @property
    def async_copied(self) -> bool:
        """Without registers in between."""
        held = STORED[self.value.dtype] == self.element_type and self.loads_along_k == self.stored_along_k
        return self.is_plain_load and held and self.vector * itemsize(self.value.dtype) >= 4

    def tile_elements(self, side: str, deep: str) -> str:
        """Of a tile, in elements."""
        return f"{side} * ({deep} + {self.padding})" if self.stored_along_k else f"{deep} * ({side} + {self.padding})"

    def header(self) -> list[str]:
        kind, pieces = self.name.capitalize(), f"{self.name.upper()}_PIECES"
        laid = "true" if self.stored_along_k else "false"
        lines = [f"using {kind} = Tile<{self.element_type}, {self.tile_side}, TILE_K, {laid}, {self.padding}>;"]
        count = f"{self._count} = ({pieces} + THREADS - 1) / THREADS"
        lines += [f"constexpr int {pieces} = {self.tile_side} * TILE_K / {self.vector}, {count};"]
        return (
            lines
            if self.async_copied
            else [*lines, f"{self._register_type} {self.name}_next[{self._count}][{self.vector}];"]
        )

    @property
    def _count(self) -> str:
        return f"{self.name.upper()}_COUNT"

    @property
    def _register_type(self) -> str:
        return STORED[self.value.dtype] if self.is_plain_load else arithmetic_type(self.value.dtype)

    def load_tile(self) -> list[str]:
        """A thread's pieces of the tile that begins at term `start`: copied to buffer `slot`, or loaded into registers."""
        turns, names = self._thread_loop(self.loads_along_k, self.vector), Names()
        turns.bind_printer()
        if self.is_plain_load:
            tensor, index = self.value.data
            address = turns.address(tensor, index, {})
            if self.vector > 1:
                self.builder.vectorized.add(tensor)
            if self.async_copied:
                bytes_ = self.vector * itemsize(self.value.dtype)
                there = f"{turns.always_in_bounds} || ({turns.in_bounds})"
                body = [f"copy<{bytes_}>({self._slot_address}, {address}, {there});"]
                return self._unrolled([*turns.index_lines, *self._if_pack(body)])
            body = (
                [f"read({self.name}_next[u], {address});"]
                if self.vector > 1
                else [f"{self.name}_next[u][0] = *({address});"]
            )
            return self._unrolled(
                [
                    *turns.index_lines,
                    *self._zero_registers(),
                    f"if ({turns.always_in_bounds} || ({turns.in_bounds})) {{",
                    *indented(body),
                    "}",
                ]
            )
        lines = turns.emit_loads(names)
        return [
            "{",
            *indented([*lines, *self._unrolled(self._zero_registers()), *turns.unrolled(turns.emit_pack(names))]),
            "}",
        ]

    def store_tile(self) -> list[str]:
        """From registers to buffer `slot`."""
        if self.async_copied:
            return []
        turns, held = self._thread_loop(self.loads_along_k, self.vector), f"{self.name}_next[u]"
        if self.loads_along_k == self.stored_along_k or self.vector == 1:
            body = [f"lay({self._slot_address}, {held});"]
        else:
            other = f"{self.name}s[slot * {self.name.capitalize()}::SIZE + {self.name.capitalize()}::at(s, d + j)]"
            body = [
                "#pragma unroll",
                f"for (int j = 0; j < {self.vector}; ++j) {other} = {self.element_type}({held}[j]);",
            ]
        return self._unrolled([*turns.index_lines[:2], *self._if_pack(body)])

    @property
    def _slot_address(self) -> str:
        kind = self.name.capitalize()
        return f"{self.name}s + slot * {kind}::SIZE + {kind}::at(s, d)"

    def _if_pack(self, body: list[str]) -> list[str]:
        pieces = f"{self.name.upper()}_PIECES"
        return [f"if ({pieces} % THREADS == 0 || piece < {pieces}) {{", *indented(body), "}"]

    def _zero_registers(self) -> list[str]:
        return [
            "#pragma unroll",
            f"for (int j = 0; j < {self.vector}; ++j) {self.name}_next[u][j] = {self._register_type}(0.0f);",
        ]

    def _unrolled(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int u = 0; u < {self._count}; ++u) {{", *indented(body), "}"]

    def _thread_loop(self, deeply: bool, vector: int) -> ThreadLoop:
        rows, terms = iterations(self.loops), iterations(self.depth)
        j = variable(LoopVar("j", vector))
        side = LoopVar(f"{self.name}_side", rows if deeply else rows // vector)
        deep = LoopVar(f"{self.name}_deep", terms // vector if deeply else terms)
        at_side = variable(side) if deeply else variable(side) * vector + j
        at_deep = variable(deep) * vector + j if deeply else variable(deep)
        places = {**self.batch, **unflatten_loops(self.loops, at_side), **unflatten_loops(self.depth, at_deep)}
        line, (across, within) = (
            f"({'TILE_K' if deeply else self.tile_side} / {vector})",
            ("s", "d") if deeply else ("d", "s"),
        )
        if deeply:
            at = (f"{self.first_index} + s", f"start / {vector} + place")
        else:
            at = (f"{self.first_index} / {vector} + place", "start + d")
        here = [f"const int piece = u * THREADS + int(threadIdx.x), place = piece % {line};"]
        here += [f"const int {across} = piece / {line}, {within} = place * {vector};"]
        here += [f"[[maybe_unused]] const Int {side.name} = {at[0]}, {deep.name} = {at[1]};"]
        pieces = f"{self.name.upper()}_PIECES"
        inside = f"{side.name} < {side.extent} && {deep.name} < {deep.extent} && piece < {pieces}"
        whole = f"({rows} % {self.tile_side} == 0 && {terms} % TILE_K == 0 && {pieces} % THREADS == 0)"
        one_pass = RowPass((*self.loops, *self.depth), [], [self.value])
        kept = {self.value: f"{self.name}_next[u][j]"}
        turns = ThreadLoop(
            self.builder, one_pass, vector, places, whole, inside, here, self._count, self._count, "", kept
        )
        turns.bind_printer()
        if self.guards:
            turns.always_in_bounds = "false"
            turns.in_bounds = " && ".join([inside, *(turns.guard_condition(guard) for guard in self.guards)])
        return turns
