"""The kernels of a stage with rows, in CUDA: one for all of its passes, or one for each where several blocks share a row."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.cpp.syntax import arithmetic_type
from kernelpro.authors.playbook.cuda.across_rows import ThreadsAcrossRows
from kernelpro.authors.playbook.cuda.along_rows import ThreadsAlongRow
from kernelpro.authors.playbook.cuda.row_kernel import RowKernel, scans_of
from kernelpro.authors.playbook.cuda.syntax import REDUCE_OPERATORS, combined, identity, indented
from kernelpro.authors.playbook.cuda.thread_loop import CudaSourceBuilder
from kernelpro.authors.playbook.cuda.sliding_windows import SlidingWindows, find_overlap
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import RowPass, split_into_passes
from kernelpro.authors.playbook.ir.stages import ReduceStep, Stage

_TOTALS_THREADS = 1024
"""Threads of the block that makes totals."""


def write_row_stage(writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int) -> None:
    """All kernels of a stage."""
    kind: type[RowKernel] = ThreadsAcrossRows if how.order == "strips" and stage.outer else ThreadsAlongRow
    if how.order == "tiles" and find_overlap(stage):
        kind, how = SlidingWindows, replace(how, split=1, cache_row=False)
    made = split_into_passes(stage)
    if how.split == 1 or not can_split(stage):
        last = kind(writing, stage, how, place, made)
        last.write(f"stage{place}")
    else:
        last = _write_split(writing, stage, how, place, kind, made)
    if stage.totals:
        _write_totals(writing, stage, place, last.grid)


def can_split(stage: Stage) -> bool:
    """Whether every number of a row comes from a loop without order."""
    looped = [step for step in stage.reductions if step.loops]
    return (
        bool(looped) and len(looped) == len(stage.reductions) and not any(scans_of(one) for one in split_into_passes(stage))
    )


def _write_split(
    writing: CudaSourceBuilder, stage: Stage, how: StageDesign, place: int, kind: type[RowKernel], made: list[RowPass]
) -> RowKernel:
    shares = writing.tunable(f"SPLIT{place}", how.split, 1, 256)
    most, known = max(writing.tunables[shares][1]), list[ReduceStep]()
    for number, one in enumerate(one for one in made if one.loops):
        last = kind(writing, stage, how, place, [one], shares, known)
        last.write(f"stage{place}_{number}", max_split=most)
        known += [step for step in one.steps if isinstance(step, ReduceStep)]
    rest = [one for one in made if not one.loops]
    if rest or stage.totals:
        alone = replace(how, threads=256, lanes=1, vector_width=1)
        last = ThreadsAcrossRows(writing, stage, alone, place, rest, "1", known, shares, tuned=False)
        last.write(f"stage{place}_end")
    return last


def _write_totals(writing: CudaSourceBuilder, stage: Stage, place: int, blocks: str) -> None:
    """One more block makes the totals of all the others' parts."""
    writing.begin_kernel()
    lines = []
    for total in stage.totals:
        kind = arithmetic_type(total.value.dtype)
        part = f"part_{total.name}"
        lines += [f"__shared__ {kind} warps_{total.name}[{_TOTALS_THREADS // 32}];"]
        lines += [f"{kind} {total.name} = {identity(total.kind, kind)};"]
        added = combined(total.kind, total.name, f"{part}[i]")
        lines += [f"for (int i = threadIdx.x; i < {blocks}; i += {_TOTALS_THREADS}) {total.name} = {added};"]
        lines += [
            f"{total.name} = joined<{REDUCE_OPERATORS[total.kind]}, {_TOTALS_THREADS}>({total.name}, warps_{total.name});"
        ]
    stores = [line for step in stage.epilogue for line in writing.store_element(step, {})]
    lines += ["if (threadIdx.x == 0) {", *indented(stores), "}"]
    writing.add_kernel(f"stage{place}_totals", lines, "1", str(_TOTALS_THREADS))
