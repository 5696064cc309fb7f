"""Element-wise stages in CUDA: every element on its own, neighbouring threads at neighbouring pieces."""

from __future__ import annotations

from kernelpro.authors.playbook.codegen.printing import Names
from kernelpro.authors.playbook.cuda.thread_loop import Turns, Writing, fitting, size, spread
from kernelpro.authors.playbook.design import StageDesign
from kernelpro.authors.playbook.fusion.passes import RowPass, loop_invariants
from kernelpro.authors.playbook.ir.indices import LoopVar, variable
from kernelpro.authors.playbook.ir.stages import Stage, StoreStep


def is_flat(stage: Stage) -> bool:
    """Nothing but stores along the same loops, and no order among their turns."""
    plain = all(
        isinstance(step, StoreStep) and not any(n.op == "scan" for n in step.value.walk()) for step in stage.steps
    )
    return plain and not stage.totals and len({step.loops for step in stage.steps}) == 1


def write_flat(writing: Writing, stage: Stage, how: StageDesign, place: int) -> None:
    """A thread takes `together` pieces, as many apart as the block has threads."""
    writing.begin()
    threads = writing.tunable(f"THREADS{place}", how.threads, 64, 1024)
    each = writing.tunable(f"COARSENING{place}", how.coarsening, 1, 8)
    loops = (*stage.outer, *stage.steps[0].loops)
    vector = fitting(how.vector_width, loops)
    pieces = size(loops) // vector
    places = spread(variable(LoopVar("at", pieces)), loops, vector, variable(LoopVar("j", vector)))
    turns = Turns(
        writing,
        RowPass(loops, list(stage.steps)),
        vector,
        places,
        whole=f"({pieces} % ({each} * {threads}) == 0)",
        inside=f"at < {pieces}",
        here=[f"const Int at = (Int(blockIdx.x) * {each} + u) * {threads} + Int(threadIdx.x);"],
        count=each,
        ahead=each,
    )
    names: Names = {}
    turns.begin()
    lines = writing.printer.statements(loop_invariants([step.value for step in stage.steps], set(loops), set()), names)
    writing.add(
        f"stage{place}",
        [*lines, *turns.lines(names)],
        f"(({pieces} + {each} * {threads} - 1) / ({each} * {threads}))",
        threads,
    )
