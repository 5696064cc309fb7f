"""Element-wise stages in CUDA: every element on its own, neighbouring threads at neighbouring pieces."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.cuda.thread_loop import ThreadLoop, CudaSourceBuilder, fit_vector, size, unflatten_pack
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, loop_invariants
from kernelpro.authors.playbook.ir.indices import LoopVar, variable
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep


def is_elementwise(stage: Stage) -> bool:
    """Nothing but stores along the same loops, and no order among their turns."""
    plain = all(
        isinstance(step, StoreStep) and not any(n.op == "scan" for n in step.value.walk()) for step in stage.steps
    )
    return plain and not stage.totals and len({step.loops for step in stage.steps}) == 1


def write_elementwise(writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int) -> None:
    """A thread takes `together` pieces, as many apart as the block has threads."""
    writing.begin_kernel()
    threads = writing.tunable(f"THREADS{place}", how.threads, 64, 1024)
    each = writing.tunable(f"COARSENING{place}", how.coarsening, 1, 8)
    loops = (*stage.outer, *stage.steps[0].loops)
    vector = fit_vector(how.vector_width, loops)
    pieces = size(loops) // vector
    places = unflatten_pack(variable(LoopVar("at", pieces)), loops, vector, variable(LoopVar("j", vector)))
    turns = ThreadLoop(
        writing,
        RowPass(loops, list(stage.steps)),
        vector,
        places,
        always_in_bounds=f"({pieces} % ({each} * {threads}) == 0)",
        in_bounds=f"at < {pieces}",
        index_lines=[f"const Int at = (Int(blockIdx.x) * {each} + u) * {threads} + Int(threadIdx.x);"],
        iterations=each,
        unroll=each,
    )
    names: Names = {}
    turns.bind_printer()
    lines = writing.printer.statements(loop_invariants([step.value for step in stage.steps], set(loops), set()), names)
    writing.add_kernel(
        f"stage{place}",
        [*lines, *turns.emit(names)],
        f"(({pieces} + {each} * {threads} - 1) / ({each} * {threads}))",
        threads,
    )
