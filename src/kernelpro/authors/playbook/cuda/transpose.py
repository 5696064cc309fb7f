"""Element-wise stages that transpose: squares of the tensor go through shared memory.

Where a stage stores along one loop and loads along another, either its loads or its stores would be scattered. A block
takes a square of both loops, loads it along the one, and goes on along the other.
"""

from __future__ import annotations

from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.elementwise import is_elementwise
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, CudaSourceBuilder, unflatten_pack
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass
from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, variable
from kernelpro.authors.playbook.ir.stages import Stage


def find_transpose(stage: Stage) -> tuple[LoopVar, LoopVar, list[Expr]] | None:
    """The loop along which an element-wise stage stores, that along which it loads, and those loads."""
    if not is_elementwise(stage):
        return None
    loops = (*stage.outer, *stage.steps[0].loops)
    if len(loops) < 2:
        return None
    *others, inner = loops
    nodes = {
        node
        for step in stage.steps
        for node in step.value.walk()
        if node.op == "load" and node.data[1].is_affine
    }
    for other in others:
        found = [n for n in nodes if n.data[1].coefficient(other) == 1 and n.data[1].coefficient(inner) > 1]
        if found:
            return inner, other, sorted(found, key=lambda node: node.number)
    return None


def write_transpose(writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int) -> None:
    found = find_transpose(stage)
    assert found
    inner, other, loads = found
    writing.begin_kernel()
    threads = writing.tunable(f"THREADS{place}", how.threads, 128, 512)
    side = writing.tunable(f"TILE{place}", how.tile, 32, 64)
    loops = (*stage.outer, *stage.steps[0].loops)
    rest = tuple(var for var in loops if var not in (inner, other))
    p, q = LoopVar("p", inner.extent), LoopVar("q", other.extent)
    places: dict[LoopVar, IndexExpr] = {inner: variable(p), other: variable(q)}
    places |= unflatten_pack(variable(LoopVar("rest", prod(var.extent for var in rest))), rest, 1, IndexExpr())
    turns = ThreadLoop(
        writing,
        RowPass(loops, list(stage.steps)),
        1,
        places,
        always_in_bounds=f"({inner.extent} % {side} == 0 && {other.extent} % {side} == 0)",
        in_bounds=f"p < {inner.extent} && q < {other.extent}",
        index_lines=["const Int p = left + x, q = top + y + u * STEP;"],
        iterations="COUNT",
        unroll="COUNT",
    )
    turns.bind_printer()
    names: Names = {}
    lines = _header(inner, other, side, threads)
    for node in loads:
        tile = f"tile{node.number}"
        lines += [
            f"__shared__ {arithmetic_type(node.dtype)} {tile}[{side}][{side} + 1];  // one more: no two of a column in a bank"
        ]
        body = [f"{tile}[y + u * STEP][x] = {writing.printer.text(node, {})};"]
        inside = [f"if ({turns.always_in_bounds} || ({turns.in_bounds})) {{", *indented(body), "}"]
        here = "const Int p = left + y + u * STEP, q = top + x;"
        lines += ["#pragma unroll", "for (int u = 0; u < COUNT; ++u) {", *indented([here, *inside]), "}"]
        names[node] = f"{tile}[x][y + u * STEP]"
    first = turns.emit_loads(names)
    lines += turns.outer_loop([*first, "__syncthreads();", *turns.unrolled(turns.emit_pack(names))])
    tiles = [f"(({var.extent} + {side} - 1) / {side})" for var in (inner, other)]
    blocks = " * ".join([*tiles, str(prod(var.extent for var in rest))])
    writing.add_kernel(f"stage{place}", lines, blocks, threads)


def _header(inner: LoopVar, other: LoopVar, side: str, threads: str) -> list[str]:
    """Where the block's square lies, and where the thread stands in it."""
    return [
        f"constexpr int STEP = {threads} / {side}, COUNT = {side} / STEP;",
        f"constexpr int ACROSS = ({inner.extent} + {side} - 1) / {side}, DOWN = ({other.extent} + {side} - 1) / {side};",
        f"const int x = threadIdx.x % {side}, y = threadIdx.x / {side};",
        f"const Int left = Int(blockIdx.x % ACROSS) * {side}, top = Int(blockIdx.x / ACROSS % DOWN) * {side};",
        "[[maybe_unused]] const Int rest = blockIdx.x / (ACROSS * DOWN);",
    ]
