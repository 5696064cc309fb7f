"""The kernels of a stage with rows: one for all passes, or one for each pass if several blocks share a
row."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.across_rows import ThreadsAcrossRows
from kernelpro.authors.playbook.cuda.along_rows import ThreadsAlongRow
from kernelpro.authors.playbook.cuda.builder import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.row_kernel import RowKernel
from kernelpro.authors.playbook.cuda.sliding_windows import SlidingWindows, find_overlap
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, combine, identity_element, indented
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, scans_of, split_into_passes

_TOTALS_THREADS = 1024
"""Threads of the single block that combines totals."""


def write_row_stage(builder: CudaSourceBuilder, stage: Stage, design: StageDesign, number: int) -> None:
    """Add all kernels of the stage."""
    layout: type[RowKernel] = (
        ThreadsAcrossRows if design.order == "strips" and stage.outer else ThreadsAlongRow
    )
    if design.order == "tiles" and find_overlap(stage):
        layout, design = SlidingWindows, replace(design, split=1, cache_row=False)
    passes = split_into_passes(stage)
    if design.split == 1 or not can_split(stage):
        last = layout(builder, stage, design, number, passes)
        last.write(f"stage{number}")
    else:
        last = _write_split(builder, stage, design, number, layout, passes)
    if stage.totals:
        _write_totals(builder, stage, number, last.grid)


def can_split(stage: Stage) -> bool:
    """Whether every reduction has a loop and none depends on the order of its elements."""
    looped = [step for step in stage.reductions if step.loops]
    return (
        bool(looped) and len(looped) == len(stage.reductions) and not scans_of(s.value for s in stage.steps)
    )


def _write_split(
    builder: CudaSourceBuilder,
    stage: Stage,
    design: StageDesign,
    number: int,
    layout: type[RowKernel],
    passes: list[RowPass],
) -> RowKernel:
    split = builder.tunable(f"SPLIT{number}", design.split, 1, 256)
    max_split, partials = max(builder.tunables[split][1]), list[ReduceStep]()
    for pass_number, row_pass in enumerate(row_pass for row_pass in passes if row_pass.loops):
        last = layout(builder, stage, design, number, [row_pass], split, partials)
        last.write(f"stage{number}_{pass_number}", max_split)
        partials += row_pass.reductions
    rest = [row_pass for row_pass in passes if not row_pass.loops]
    if rest or stage.totals:
        design = replace(design, threads=256, lanes=1, vector_width=1)
        last = ThreadsAcrossRows(builder, stage, design, number, rest, "1", partials, split, tuned=False)
        last.write(f"stage{number}_end")
    return last


def _write_totals(builder: CudaSourceBuilder, stage: Stage, number: int, count: str) -> None:
    """Add a kernel with one block, which combines the partial totals of `count` blocks and runs the
    epilogue."""
    builder.begin_kernel()
    lines = []
    for total in stage.totals:
        name, value_type = total.name, arithmetic_type(total.value.dtype)
        update = f"{name} = {combine(total.kind, name, f'partial_{name}[i]')};"
        reduction = f"reduce_lanes<{REDUCE_OPERATORS[total.kind]}, {_TOTALS_THREADS}>({name}, scratch_{name})"
        lines += [
            f"__shared__ {value_type} scratch_{name}[{_TOTALS_THREADS // 32}];",
            f"{value_type} {name} = {identity_element(total.kind, value_type)};",
            f"for (int i = threadIdx.x; i < {count}; i += {_TOTALS_THREADS}) {update}",
            f"{name} = {reduction};",
        ]
    stores = [builder.store_element(step, {}) for step in stage.epilogue]
    lines += ["if (threadIdx.x == 0) {", *indented(stores), "}"]
    builder.add_kernel(f"stage{number}_totals", lines, "1", str(_TOTALS_THREADS))
