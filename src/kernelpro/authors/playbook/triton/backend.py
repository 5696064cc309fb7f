"""The Triton backend: writes the candidate, and chooses a kernel for each stage."""

from __future__ import annotations

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.codegen import python_module
from kernelpro.authors.playbook.codegen.backend import Backend
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.contractions import is_matmul
from kernelpro.authors.playbook.schedule.design import Design, StageDesign
from kernelpro.authors.playbook.schedule.passes import is_elementwise
from kernelpro.authors.playbook.triton import moves
from kernelpro.authors.playbook.triton.builder import TritonSourceBuilder
from kernelpro.authors.playbook.triton.elementwise import (
    RowPerLane,
    TransposeTile,
    broadcast_rows,
    find_transpose,
    regroup_rows,
)
from kernelpro.authors.playbook.triton.functions import LIBDEVICE, functions
from kernelpro.authors.playbook.triton.matmul import TritonMatmul
from kernelpro.authors.playbook.triton.row_kernel import TritonRowKernel
from kernelpro.authors.playbook.triton.stage_kernel import StageKernel

_IMPORTS = "\nimport triton\nimport triton.language as tl\n"


def write(program: Program, design: Design) -> str:
    """The candidate's source file. Raises NoProposal."""
    builder = TritonSourceBuilder(program, design.math)
    for number, (stage, stage_design) in enumerate(zip(program.stages, design.stages, strict=True)):
        builder.launches += python_module.library_lines(program, number)
        remaining: Stage | None = stage
        if is_matmul(stage, stage_design):
            remaining = TritonMatmul(builder, stage, stage_design, number, design.precision).write()
        if remaining:
            _stage_kernel(builder, remaining, stage_design, number).write()
    builder.launches += python_module.library_lines(program, len(program.stages))
    called = functions(builder.printer.functions, design.math)
    imports = _IMPORTS + (LIBDEVICE if any("libdevice." in text for text in called) else "") + "\n"
    source = "\n\n".join([*called, *builder.sources])
    kernels = "\n".join([*builder.derived_constants, imports, source])
    title = "Written by the playbook in Triton."
    return python_module.module_source(program, design, title, kernels, builder.launches, builder.tunables)


def _stage_kernel(
    builder: TritonSourceBuilder, stage: Stage, design: StageDesign, number: int
) -> StageKernel:
    if stage.has_guarded_stores:
        raise NoProposal("only the playbook's tiled products can store a part of their results")
    if not is_elementwise(stage):
        row_per_lane = design.order == "strips" and stage.rows > 1
        return (RowPerLane if row_per_lane else TritonRowKernel)(builder, stage, design, number)
    if design.order == "tiles" and (tile_loops := find_transpose(stage)):
        return TransposeTile(builder, stage, design, number, tile_loops)
    if design.order == "rows" and (rows := broadcast_rows(stage)):
        return TritonRowKernel(builder, regroup_rows(stage, rows), design, number)
    loops = len(stage.outer) + len(stage.steps[0].loops)
    return RowPerLane(builder, regroup_rows(stage, loops), design, number)


BACKEND = Backend("triton", "cuda", write, moves.seeds, moves.MOVES, moves.fallbacks)
