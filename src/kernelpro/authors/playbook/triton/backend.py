"""Writing Triton for GPUs: a kernel or a few for each stage, launched one after another.

triton_words.py     types, operators, masked loads; triton_functions.py: what kernels may call
triton_tiles.py     what tiles share; the flat one, for what is element-wise or has short loops; squares for transposed reads
triton_rows.py      rows with loops of their own: norms, softmaxes, reductions, scans
triton_products.py  matrix products and convolutions on tensor cores
moves.py     designs to begin with, and moves
"""

from __future__ import annotations

from kernelpro.authors.playbook.codegen import python_module as frame
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.schedule.design import Design, StageDesign
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.triton import moves
from kernelpro.authors.playbook.triton.functions import LIBDEVICE, functions
from kernelpro.authors.playbook.triton.matmul import TritonMatmul
from kernelpro.authors.playbook.triton.row_kernel import TritonRowKernel
from kernelpro.authors.playbook.triton.stage_kernel import (
    TransposeTile,
    RowPerLane,
    TritonSourceBuilder,
    StageKernel,
    find_transpose,
    broadcast_rows,
    is_elementwise,
    regroup_rows,
)

_IMPORTS = "\nimport triton\nimport triton.language as tl\n"


def write(program: Program, design: Design) -> str:
    """The candidate's file."""
    kernels = TritonSourceBuilder(program, design.math)
    for place, (stage, how) in enumerate(zip(program.stages, design.stages, strict=True)):
        left: Stage | None = stage
        if stage.product or (how.order == "tiles" and find_contraction(stage)):
            left = TritonMatmul(kernels, stage, how, place, design.precision).write()
        if left:
            _stage_kernel(kernels, left, how, place).write()
    called = functions(kernels.printer.functions, design.math)
    imports = _IMPORTS + (LIBDEVICE if any("libdevice." in text for text in called) else "") + "\n"
    head = "\n".join([*kernels.derived_constants, imports, "\n\n".join([*called, *kernels.sources])])
    return frame.module_source(
        program, design, "Written by the playbook in Triton.", head, kernels.launches, kernels.tunables
    )


def _stage_kernel(kernels: TritonSourceBuilder, stage: Stage, how: StageDesign, place: int) -> StageKernel:
    """order: rows, as triton_rows.py has them, and one row always; strips: flat; tiles: squares, where a stage reads across."""
    if not is_elementwise(stage):
        return (RowPerLane if how.order == "strips" and stage.rows > 1 else TritonRowKernel)(kernels, stage, how, place)
    if how.order == "tiles" and (ways := find_transpose(stage)):
        return TransposeTile(kernels, stage, how, place, ways)
    rows = broadcast_rows(stage) if how.order == "rows" else 0
    if rows:
        return TritonRowKernel(kernels, regroup_rows(stage, rows), how, place)
    return RowPerLane(kernels, regroup_rows(stage, len(stage.outer) + len(stage.steps[0].loops)), how, place)


BACKEND = Backend("triton", "cuda", write, moves.seeds, moves.MOVES, moves.fallbacks)
