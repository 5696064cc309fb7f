"""First designs in Triton."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelpro.authors.playbook.design import Design, StageDesign
from kernelpro.authors.playbook.indices import Var
from kernelpro.authors.playbook.stages import Program, Stage, Store
from kernelpro.authors.playbook.triton_products import contraction
from kernelpro.authors.playbook.triton_rows import LARGEST, fits
from kernelpro.authors.playbook.triton_tiles import across, broadcast_rows, elementwise
from kernelpro.authors.playbook.triton_words import power_of_two

_PROGRAMS = 512
"""So many programs keep the largest GPUs of today busy: about four for each multiprocessor."""
_SMALL = 1 << 20
"""Elements that are not worth a second kernel."""
_TILE = 4096
"""Elements that a program of 256 threads has on the way at once."""


def seeds(program: Program) -> list[Design]:
    """The design to bet on, and others that differ from it in kind."""
    best = Design("triton", tuple(first(stage) for stage in program.stages))
    others = [
        replace(best, stages=tuple(map(_read_again, program.stages, best.stages))),
        replace(best, stages=tuple(map(_smaller, best.stages))),
        replace(best, stages=tuple(map(_other_order, program.stages, best.stages))),
    ]
    found = [best]
    found += [design for place, design in enumerate(others) if design not in (best, *others[:place])]
    return found


def first(stage: Stage) -> StageDesign:
    if stage.product or contraction(stage):
        return _product(stage)
    if elementwise(stage):
        return _elementwise(stage)
    if any(reduce.guards for reduce in stage.reduces):
        return StageDesign(order="strips", threads=256, vector=2)
    return _rows(stage)


def _product(stage: Stage) -> StageDesign:
    found = contraction(stage)
    assert found
    rows, columns, batch = (prod(v.extent for v in loops) for loops in (found.rows, found.columns, found.batch))
    half = found.left.dtype != "float32"
    block = (128, 256, 64) if half else (128, 128, 32)
    while batch * -(-rows // block[0]) * -(-columns // block[1]) < _PROGRAMS // 4 and min(block[:2]) >= 64 and max(block[:2]) > 64:
        block = (block[0], block[1] // 2, block[2]) if block[1] > block[0] else (block[0] // 2, block[1], block[2])
    threads = 256 if block[0] * block[1] > 64 * 64 else 128
    return StageDesign(order="tiles", keep=stage.product is not None, block=block, threads=threads, stages=3, vector=8)


def _elementwise(stage: Stage) -> StageDesign:
    if across(stage):
        return StageDesign(order="tiles", threads=256)
    rows = broadcast_rows(stage)
    if not rows:
        return StageDesign(order="strips", threads=256, vector=8 if _bytes(stage) > 2 else 16)
    loops = (*stage.outer, *stage.steps[0].loops)
    width = prod(var.extent for var in loops[rows:])
    if width <= _TILE:
        return StageDesign(keep=True, together=max(_TILE // 2 // power_of_two(width), 1), threads=256)
    return StageDesign(threads=256, vector=8, split=power_of_two(-(-width // 2048)))


def _rows(stage: Stage) -> StageDesign:
    width = max((prod(v.extent for v in step.loops) for step in stage.steps), default=1)
    padded, rows = power_of_two(width), stage.rows
    if _window(stage, width):
        return StageDesign(order="strips", threads=256, vector=2)
    if neighbours_are_rows(stage):
        together = min(64, power_of_two(rows))
        if padded * together <= _TILE * 4:
            return StageDesign(keep=True, together=together, threads=256)
        return StageDesign(together=together, threads=256, vector=16, split=_split(-(-rows // together), width, _TILE // together))
    if fits(stage) and (rows >= _PROGRAMS // 4 or padded <= _TILE):
        together = min(max(_TILE // 2 // padded, 1), max(power_of_two(rows) // 256, 1))
        return StageDesign(keep=True, together=together, threads=min(max(padded * together // 16, 64), 1024))
    return StageDesign(threads=512, vector=8, split=_split(rows, width, _TILE))


def _split(rows: int, width: int, stretch: int) -> int:
    """Programs for each row, so that there are enough in all and each has something to do."""
    if rows >= _PROGRAMS // 2 or rows * width < _SMALL:
        return 1
    return max(min(power_of_two(-(-_PROGRAMS // rows)), power_of_two(width // stretch), 64), 1)


def _window(stage: Stage, width: int) -> bool:
    """A few elements for each row, none of which is needed twice: threads had better have rows of their own."""
    once = len(stage.reduces) > 0 and not any(step.loops for step in stage.steps if isinstance(step, Store))
    depends = any(node.op == "row" for reduce in stage.reduces for node in reduce.value.walk())
    short = width <= 64 and (neighbours_are_rows(stage) or stage.reduces[0].loops[-1].extent < 16) if once else False
    return short and not depends


def neighbours_are_rows(stage: Stage) -> bool:
    """Elements that lie side by side in memory belong to different rows."""
    found: list[bool] = []
    for step in stage.steps:
        loops: tuple[Var, ...] = step.loops
        for node in step.value.walk():
            if node.op == "load" and node.variables & set(loops) and stage.outer:
                index = node.data[1]
                found.append(index.coefficient(stage.outer[-1]) == 1 and not any(index.coefficient(var) == 1 for var in loops))
    return bool(found) and sum(found) * 2 > len(found)


def _bytes(stage: Stage) -> int:
    types = {node.dtype for step in stage.steps for node in step.value.walk() if node.op == "load"}
    return 2 if types and types <= {"float16", "bfloat16"} else 4


def _read_again(stage: Stage, how: StageDesign) -> StageDesign:
    """Rows that would be kept are gone over in stretches."""
    plain = all(isinstance(step, Store) for step in stage.steps)
    return replace(how, keep=False, vector=8) if how.keep and not plain and not stage.product else how


def _smaller(how: StageDesign) -> StageDesign:
    block = (how.block[0] // 2, how.block[1], how.block[2]) if how.block[0] > 64 else how.block
    return replace(how, block=block, threads=max(how.threads // 2, 64), stages=how.stages + 1)


def _other_order(stage: Stage, how: StageDesign) -> StageDesign:
    """Flat instead of rows and the other way round, where both can be done."""
    if stage.product or how.order == "tiles":
        return how
    width = max((prod(v.extent for v in step.loops) for step in stage.steps), default=1)
    if how.order == "strips" and not elementwise(stage) and width <= LARGEST:
        return StageDesign(keep=True, together=max(_TILE // 2 // power_of_two(width), 1), threads=256)
    return StageDesign(order="strips", threads=256, vector=4) if how.order == "rows" and width <= 64 else how
