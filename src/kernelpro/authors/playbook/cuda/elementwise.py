"""Element-wise stages in CUDA: consecutive threads process consecutive packs."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, fit_vector, unflatten_pack
from kernelpro.authors.playbook.ir.indices import LoopVar, iterations, variable
from kernelpro.authors.playbook.ir.stages import Stage
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants


def write_elementwise(builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int) -> None:
    """Add the kernel: a thread processes `coarsening` packs, which are one block width apart."""
    builder.begin_kernel()
    threads = builder.tunable(f"THREADS{number}", design.threads, 64, 1024)
    coarsening = builder.tunable(f"COARSENING{number}", design.coarsening, 1, 8)
    loops = (*stage.outer, *stage.steps[0].loops)
    vector = fit_vector(design.vector_width, loops)
    packs = iterations(loops) // vector
    loop = ThreadLoop(
        builder,
        RowPass(loops, list(stage.steps)),
        vector,
        unflatten_pack(variable(LoopVar("pack", packs)), loops, vector, variable(LoopVar("j", vector))),
        always_in_bounds=f"({packs} % ({coarsening} * {threads}) == 0)",
        in_bounds=f"pack < {packs}",
        index_lines=[
            f"const Int pack = (Int(blockIdx.x) * {coarsening} + u) * {threads} + Int(threadIdx.x);"
        ],
        iterations=coarsening,
        unroll=coarsening,
    )
    names: Names = {}
    loop.bind_printer()
    lines = builder.printer.statements(loop_invariants(loop.row_pass.roots, set(loops), set()), names)
    per_block = f"({coarsening} * {threads})"
    grid = f"(({packs} + {coarsening} * {threads} - 1) / {per_block})"
    builder.add_kernel(f"stage{number}", [*lines, *loop.emit(names)], grid, threads)
