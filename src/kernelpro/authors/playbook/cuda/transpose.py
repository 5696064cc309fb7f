"""Element-wise stages that transpose: square tiles go through shared memory.

If a stage stores along one loop and loads along another, either its loads or its stores are uncoalesced. So a
block processes a square tile of both loops: it loads along one and stores along the other.
"""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.syntax import indented
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop
from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    LoopVar,
    iterations,
    unflatten_loops,
    variable,
)
from kernelpro.authors.playbook.ir.stages import Stage
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, is_elementwise


def find_transpose(stage: Stage) -> tuple[LoopVar, LoopVar, list[Expr]] | None:
    """The loop along which an element-wise stage stores, the loop along which it loads, and those loads."""
    if not is_elementwise(stage):
        return None
    loops = (*stage.outer, *stage.steps[0].loops)
    if len(loops) < 2:
        return None
    *others, store_loop = loops
    loads = [node for node in nodes_of(stage.expressions, "load") if node.data[1].is_affine]
    for load_loop in others:
        transposed = [
            node
            for node in loads
            if node.data[1].coefficient(load_loop) == 1 and node.data[1].coefficient(store_loop) > 1
        ]
        if transposed:
            return store_loop, load_loop, sorted(transposed, key=lambda node: node.number)
    return None


def write_transpose(builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int) -> None:
    """Add the kernel of a stage for which `find_transpose` returns loops."""
    match = find_transpose(stage)
    assert match
    store_loop, load_loop, loads = match
    builder.begin_kernel()
    threads = builder.tunable(f"THREADS{number}", design.threads, 128, 512)
    side = builder.tunable(f"TILE{number}", design.tile, 32, 64)
    loops = (*stage.outer, *stage.steps[0].loops)
    batch_loops = tuple(var for var in loops if var not in (store_loop, load_loop))
    loop_indices: dict[LoopVar, IndexExpr] = {
        store_loop: variable(LoopVar("p", store_loop.extent)),
        load_loop: variable(LoopVar("q", load_loop.extent)),
        **unflatten_loops(batch_loops, variable(LoopVar("batch", iterations(batch_loops)))),
    }
    loop = ThreadLoop(
        builder,
        RowPass(loops, list(stage.steps)),
        1,
        loop_indices,
        always_in_bounds=f"({store_loop.extent} % {side} == 0 && {load_loop.extent} % {side} == 0)",
        in_bounds=f"p < {store_loop.extent} && q < {load_loop.extent}",
        index_lines=["const Int p = first_p + x, q = first_q + y + u * ROWS;"],
        iterations="ITERATIONS",
        unroll="ITERATIONS",
    )
    loop.bind_printer()
    names: Names = {}
    lines = _header(store_loop, load_loop, side, threads)
    for node in loads:
        tile, element_type = f"tile{node.number}", arithmetic_type(node.dtype)
        lines += [f"__shared__ {element_type} {tile}[{side}][{side} + 1];  // + 1: avoids bank conflicts"]
        body = loop.if_in_bounds([f"{tile}[y + u * ROWS][x] = {builder.printer.text(node, {})};"])
        indices = "const Int p = first_p + y + u * ROWS, q = first_q + x;"
        lines += [
            "#pragma unroll",
            "for (int u = 0; u < ITERATIONS; ++u) {",
            *indented([indices, *body]),
            "}",
        ]
        names[node] = f"{tile}[x][y + u * ROWS]"
    other_loads = loop.emit_loads(names)
    lines += loop.outer_loop([*other_loads, "__syncthreads();", *loop.unrolled(loop.emit_pack(names))])
    tiles = [f"(({var.extent} + {side} - 1) / {side})" for var in (store_loop, load_loop)]
    grid = " * ".join([*tiles, str(iterations(batch_loops))])
    builder.add_kernel(f"stage{number}", lines, grid, threads)


def _header(store_loop: LoopVar, load_loop: LoopVar, side: str, threads: str) -> list[str]:
    """Lines that declare the position of the block's tile, and of the thread in it."""
    tiles_p = f"TILES_P = ({store_loop.extent} + {side} - 1) / {side}"
    tiles_q = f"TILES_Q = ({load_loop.extent} + {side} - 1) / {side}"
    return [
        f"constexpr int ROWS = {threads} / {side}, ITERATIONS = {side} / ROWS;  // rows per iteration",
        f"constexpr int {tiles_p}, {tiles_q};",
        f"const int x = threadIdx.x % {side}, y = threadIdx.x / {side};",
        f"const Int first_p = Int(blockIdx.x % TILES_P) * {side};",
        f"const Int first_q = Int(blockIdx.x / TILES_P % TILES_Q) * {side};",
        "[[maybe_unused]] const Int batch = blockIdx.x / (TILES_P * TILES_Q);",
    ]
