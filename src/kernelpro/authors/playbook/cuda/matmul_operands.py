"""An operand of a matrix product: the layout of its tiles in shared memory, and how threads load them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.syntax import STORAGE_TYPES, indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop
from kernelpro.authors.playbook.ir.expressions import Expr, itemsize, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations, unflatten_loops, variable
from kernelpro.authors.playbook.ir.stages import Guard
from kernelpro.authors.playbook.schedule.passes import RowPass


@dataclass(frozen=True)
class MatmulOperand:
    """The left or right operand. A tile has `tile_side` rows or columns by TILE_K terms of the sum."""

    builder: CudaSourceBuilder
    name: str
    value: Expr
    tile_side: str
    """TILE_M or TILE_N."""
    first_index: str
    """The variable with the tile's first row or column."""
    loops: tuple[LoopVar, ...]
    depth: tuple[LoopVar, ...]
    batch: dict[LoopVar, IndexExpr]
    tensor_cores: bool
    guards: tuple[Guard, ...] = ()

    @property
    def element_type(self) -> str:
        """The type of the tile's elements."""
        return STORAGE_TYPES[self.value.dtype] if self.tensor_cores else arithmetic_type(self.value.dtype)

    @cached_property
    def _access(self) -> tuple[bool, int]:
        """Whether packs lie along k, and their size. Prefers the widest vectorized access, then contiguous
        ones."""
        best = (1, False, True)
        for along_k, loops in ((True, self.depth), (False, self.loops)):
            for node in nodes_of([self.value], "load"):
                index = node.data[1]
                vector = 1 if self.guards else 16 // max(2, itemsize(node.dtype))
                while vector > 1 and (
                    iterations(loops) % vector
                    or not self._thread_loop(along_k, vector).is_vectorizable(index)
                ):
                    vector //= 2
                best = max(best, (vector, index.coefficient(loops[-1]) == 1, along_k))
        return best[2], best[0]

    @property
    def loads_along_k(self) -> bool:
        """Whether a thread's packs lie along k in global memory."""
        return self._access[0]

    @property
    def vector(self) -> int:
        """Elements per pack."""
        return self._access[1]

    @property
    def stored_along_k(self) -> bool:
        """Whether the tile in shared memory is contiguous along k. Tensor cores read either layout;
        multiply-add needs the other one, because it reads neighbouring rows or columns."""
        return self.loads_along_k and self.tensor_cores

    @property
    def padding(self) -> int:
        """Elements after each line of the tile, so that consecutive lines start in different banks."""
        if not self.tensor_cores:
            return 4
        return (
            8
            if not self.stored_along_k and self.value.dtype == "float32"
            else 16 // itemsize(self.value.dtype)
        )

    @property
    def is_plain_load(self) -> bool:
        """Whether the operand is an unguarded load at an address that depends on no other load."""
        return self.value.op == "load" and not self.guards and not self.value.operands

    @property
    def async_copied(self) -> bool:
        """Whether asynchronous copies load the tiles into shared memory, without going through registers."""
        same_type = STORAGE_TYPES[self.value.dtype] == self.element_type
        same_layout = self.loads_along_k == self.stored_along_k
        wide_enough = self.vector * itemsize(self.value.dtype) >= 4
        return self.is_plain_load and same_type and same_layout and wide_enough

    def tile_elements(self, side: str, tile_k: str) -> str:
        """Elements of a tile with padding, as an expression of the tunables."""
        lines, length = (side, tile_k) if self.stored_along_k else (tile_k, side)
        return f"{lines} * ({length} + {self.padding})"

    @property
    def tile_type(self) -> str:
        """The name of the tile's type in the kernel."""
        return f"{self.name.capitalize()}Tile"

    @property
    def _packs(self) -> str:
        return f"{self.name.upper()}_PACKS"

    @property
    def _iterations(self) -> str:
        return f"{self.name.upper()}_ITERATIONS"

    @property
    def _registers(self) -> str:
        return f"{self.name}_registers"

    @property
    def _register_type(self) -> str:
        return STORAGE_TYPES[self.value.dtype] if self.is_plain_load else arithmetic_type(self.value.dtype)

    def header(self) -> list[str]:
        """Lines that declare the tile's type, the packs per thread, and registers if tiles go through
        them."""
        along_k = "true" if self.stored_along_k else "false"
        arguments = f"{self.element_type}, {self.tile_side}, TILE_K, {along_k}, {self.padding}"
        packs = f"{self._packs} = {self.tile_side} * TILE_K / {self.vector}"
        lines = [
            f"using {self.tile_type} = Tile<{arguments}>;",
            f"constexpr int {packs}, {self._iterations} = ({self._packs} + THREADS - 1) / THREADS;",
        ]
        registers = f"{self._register_type} {self._registers}[{self._iterations}][{self.vector}];"
        return lines if self.async_copied else [*lines, registers]

    def load_tile(self) -> list[str]:
        """Statements that copy the thread's packs of the tile at `first_k` to buffer `slot`, or load them to
        registers."""
        loop, names = self._thread_loop(self.loads_along_k, self.vector), Names()
        loop.bind_printer()
        if not self.is_plain_load:
            loads = loop.emit_loads(names)
            compute = loop.unrolled(loop.emit_pack(names))
            return ["{", *indented([*loads, *self._unrolled(self._zero_registers()), *compute]), "}"]
        tensor, index = self.value.data
        address = loop.address(tensor, index, {})
        if self.vector > 1:
            self.builder.vectorized.add(tensor)
        if self.async_copied:
            size = self.vector * itemsize(self.value.dtype)
            in_bounds = f"{loop.always_in_bounds} || ({loop.in_bounds})"
            copy = f"async_copy<{size}>({self._slot_address}, {address}, {in_bounds});"
            return self._unrolled([*loop.index_lines, *self._if_pack([copy])])
        load = (
            f"load_vector({self._registers}[u], {address});"
            if self.vector > 1
            else f"{self._registers}[u][0] = *({address});"
        )
        return self._unrolled([*loop.index_lines, *self._zero_registers(), *loop.if_in_bounds([load])])

    def store_tile(self) -> list[str]:
        """Statements that store the registers to buffer `slot`."""
        if self.async_copied:
            return []
        loop = self._thread_loop(self.loads_along_k, self.vector)
        if self.loads_along_k == self.stored_along_k or self.vector == 1:
            body = [f"store_shared({self._slot_address}, {self._registers}[u]);"]
        else:
            element = (
                f"{self.name}_tiles[slot * {self.tile_type}::SIZE + {self.tile_type}::offset(side, k + j)]"
            )
            body = [
                "#pragma unroll",
                f"for (int j = 0; j < {self.vector}; ++j) "
                f"{element} = {self.element_type}({self._registers}[u][j]);",
            ]
        return self._unrolled([*loop.index_lines[:2], *self._if_pack(body)])

    @property
    def _slot_address(self) -> str:
        return f"{self.name}_tiles + slot * {self.tile_type}::SIZE + {self.tile_type}::offset(side, k)"

    def _if_pack(self, body: list[str]) -> list[str]:
        return [f"if ({self._packs} % THREADS == 0 || pack < {self._packs}) {{", *indented(body), "}"]

    def _zero_registers(self) -> list[str]:
        zero = f"{self._registers}[u][j] = {self._register_type}(0.0f);"
        return ["#pragma unroll", f"for (int j = 0; j < {self.vector}; ++j) {zero}"]

    def _unrolled(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int u = 0; u < {self._iterations}; ++u) {{", *indented(body), "}"]

    def _thread_loop(self, along_k: bool, vector: int) -> ThreadLoop:
        """The loop over the thread's packs of a tile, with packs along k or along the side."""
        rows, terms = iterations(self.loops), iterations(self.depth)
        j = variable(LoopVar("j", vector))
        side = LoopVar(f"{self.name}_side", rows if along_k else rows // vector)
        k = LoopVar(f"{self.name}_k", terms // vector if along_k else terms)
        side_index = variable(side) if along_k else variable(side) * vector + j
        k_index = variable(k) * vector + j if along_k else variable(k)
        loop_indices = {
            **self.batch,
            **unflatten_loops(self.loops, side_index),
            **unflatten_loops(self.depth, k_index),
        }
        packs_per_line = f"({'TILE_K' if along_k else self.tile_side} / {vector})"
        line, position = ("side", "k") if along_k else ("k", "side")
        if along_k:
            first_side, first_k = f"{self.first_index} + side", f"first_k / {vector} + pack_in_line"
        else:
            first_side, first_k = f"{self.first_index} / {vector} + pack_in_line", "first_k + k"
        index_lines = [
            f"const int pack = u * THREADS + int(threadIdx.x), pack_in_line = pack % {packs_per_line};",
            f"const int {line} = pack / {packs_per_line}, {position} = pack_in_line * {vector};",
            f"[[maybe_unused]] const Int {side.name} = {first_side}, {k.name} = {first_k};",
        ]
        in_tile = f"{rows} % {self.tile_side} == 0 && {terms} % TILE_K == 0"
        loop = ThreadLoop(
            self.builder,
            RowPass((*self.loops, *self.depth), [], [self.value]),
            vector,
            loop_indices,
            always_in_bounds=f"({in_tile} && {self._packs} % THREADS == 0)",
            in_bounds=f"{side.name} < {side.extent} && {k.name} < {k.extent} && pack < {self._packs}",
            index_lines=index_lines,
            iterations=self._iterations,
            unroll=self._iterations,
            cached={self.value: f"{self._registers}[u][j]"},
        )
        loop.bind_printer()
        if self.guards:
            conditions = [loop.in_bounds, *(loop.guard_condition(guard) for guard in self.guards)]
            loop.always_in_bounds, loop.in_bounds = "false", " && ".join(conditions)
        return loop
