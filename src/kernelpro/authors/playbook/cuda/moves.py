"""Designs for CUDA: where to begin, and which move answers which finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Literal

from kernelpro.authors.playbook.codegen.backend import Move, Seed
from kernelpro.authors.playbook.cuda import matmul_moves
from kernelpro.authors.playbook.cuda.elementwise import is_elementwise
from kernelpro.authors.playbook.cuda.matmul import is_matmul
from kernelpro.authors.playbook.cuda.row_stages import can_split
from kernelpro.authors.playbook.cuda.transpose import find_transpose
from kernelpro.authors.playbook.cuda.thread_loop import fit_vector
from kernelpro.authors.playbook.cuda.sliding_windows import outputs_per_thread, find_overlap
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.schedule.passes import split_into_passes
from kernelpro.authors.playbook.ir.expressions import itemsize
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar
from kernelpro.authors.playbook.ir.stages import Program, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.moves import (
    APPROXIMATE_MATH,
    Apply,
    Change,
    apply_change,
    more_exact_math,
    use_fast_math,
    distinct_fallbacks,
    distinct_seeds,
    per_stage,
)

_SMS = 132
"""Of a large GPU: what is enough for it is enough for a small one."""
_SATURATING_THREADS = _SMS * 1024
"""Threads that keep its memory busy."""
_THREADS = 256
_MIN_COALESCED = 32
"""Elements that neighbouring threads read at least."""
_ELEMENTS_PER_THREAD = 16
"""Elements of a row that a thread takes, at first."""
_LONG_ROW = 32768


def seeds(program: Program) -> list[Seed]:
    """The first is the one to bet on."""
    best, wider, plain = (_design_stages(program, choose) for choose in (_best_design, _wider_design, _plain_design))
    if any(find_contraction(stage) for stage in program.stages):
        found = [
            Seed(
                "Products in tiles on tensor cores, what follows in the same kernel; tiles to fit the shape.",
                best,
            ),
            Seed("The same with smaller tiles, and more of them at the same time.", wider),
            Seed("Multiply-add instead of tensor cores.", plain),
        ]
        return distinct_seeds(found)
    found = [
        Seed(
            "One kernel a stage: 16-byte accesses, the row in registers, threads and blocks to fit the shape.",
            best,
        ),
        Seed("The same with more threads at a row, and fewer elements for each.", wider),
        Seed("Small blocks, scalar accesses, nothing kept: many warps instead of much work for each.", plain),
    ]
    return distinct_seeds(found)


def fallbacks(program: Program, design: Design) -> list[Design]:
    steps = [more_exact_math(design), design.with_all_stages(cache_row=False, split=1), _design_stages(program, _plain_design)]
    return distinct_fallbacks(design, steps)


# --- designs to begin with ---------------------------------------------------------------------------------


def _design_stages(program: Program, choose: Callable[[Stage, Program], StageDesign]) -> Design:
    return Design("cuda", tuple(choose(stage, program) for stage in program.stages))


def _best_design(stage: Stage, program: Program) -> StageDesign:
    if find_contraction(stage):
        return matmul_moves.tensor_core_design(stage)
    if is_elementwise(stage):
        return _elementwise_design(stage, program)
    if find_overlap(stage) and (how := _window_design(stage)).coarsening > 1:
        return how
    return _across_rows_design(stage, program) if _thread_order(stage) == "strips" else _along_rows_design(stage, program)


def _wider_design(stage: Stage, program: Program) -> StageDesign:
    if find_contraction(stage):
        return matmul_moves.smaller_tile_design(stage)
    how = _best_design(stage, program)
    if is_elementwise(stage):
        return (
            replace(how, threads=512, tile=64)
            if how.order == "tiles"
            else replace(how, threads=512, coarsening=1)
        )
    if how.order == "strips":
        return replace(how, lanes=min(32, 2 * how.lanes))
    if how.order == "tiles":
        return replace(how, coarsening=max(1, how.coarsening // 2))
    return replace(how, threads=min(1024, 2 * how.threads), coarsening=max(1, how.coarsening // 2))


def _plain_design(stage: Stage, program: Program) -> StageDesign:
    if stage.product:
        return matmul_moves.multiply_add_design(stage)
    if is_elementwise(stage) or _thread_order(stage) == "strips":
        return StageDesign(order="rows" if is_elementwise(stage) else "strips", threads=128)
    return StageDesign(threads=128, coarsening=4 if stage.rows >= 4 * _SMS else 1)


def _elementwise_design(stage: Stage, program: Program) -> StageDesign:
    if find_transpose(stage):
        return StageDesign(order="tiles")
    pieces = (
        stage.rows * prod(var.extent for var in stage.steps[0].loops) // (vector := _vector_width(stage, program))
    )
    loads = len({node for step in stage.steps for node in step.value.walk() if node.op == "load"})
    return StageDesign(
        vector_width=vector, coarsening=4 if pieces >= 8 * _SATURATING_THREADS and loads <= 2 else 2 if pieces >= 4 * _SATURATING_THREADS else 1
    )


def _along_rows_design(stage: Stage, program: Program) -> StageDesign:
    """A warp a row, or less, while that leaves few elements to a thread; else a block, or several."""
    vector, length = _vector_width(stage, program), stage.row_width
    pieces = max(1, length // fit_vector(vector, stage.row_loops))
    lanes = min(32 if pieces <= 256 else power_of_two(length / _ELEMENTS_PER_THREAD), power_of_two(pieces), 1024)
    threads = max(lanes, 128)
    how = StageDesign(threads=threads, coarsening=threads // lanes, vector_width=vector, cache_row=True)
    if can_split(stage) and stage.rows < 2 * _SMS and length >= _LONG_ROW:
        split = min(power_of_two(4 * _SMS / stage.rows), length // (_THREADS * _ELEMENTS_PER_THREAD), 128)
        return replace(how, threads=_THREADS, coarsening=1, split=split, cache_row=False)
    return how


def _across_rows_design(stage: Stage, program: Program) -> StageDesign:
    length = stage.row_width
    vector = fit_vector(min(4, _vector_width(stage, program)), stage.outer)
    if (length <= 64 and len(split_into_passes(stage)) <= 2) or any(reduce.guards for reduce in stage.reductions):
        return StageDesign(order="strips", vector_width=vector if stage.rows >= _SATURATING_THREADS * vector else 1)
    several = len([one for one in split_into_passes(stage) if one.loops]) > 1
    lanes = max(
        power_of_two(_SATURATING_THREADS * vector / stage.rows), power_of_two(length * vector / 32) if several else 1
    )
    lanes = max(1, min(lanes, _THREADS * vector // _MIN_COALESCED, 32, power_of_two(length / 4)))
    how = StageDesign(order="strips", lanes=lanes, vector_width=vector, cache_row=several)
    blocks = max(1, stage.rows * lanes // (_THREADS * vector))
    if can_split(stage) and blocks < 2 * _SMS and length >= 64 * lanes:
        return replace(
            how, split=max(1, min(power_of_two(4 * _SMS / blocks), length // (16 * lanes), 64)), cache_row=False
        )
    return how


def _window_design(stage: Stage) -> StageDesign:
    """As many outputs a thread as leave enough threads."""
    together = next((n for n in (8, 4, 2) if stage.rows >= n * _SATURATING_THREADS), 1)
    return StageDesign(order="tiles", threads=128, coarsening=outputs_per_thread(stage, together))


def _vector_width(stage: Stage, program: Program) -> int:
    """As many elements of the largest tensor as 16 bytes hold."""
    names = {node.data[0] for root in stage.expressions for node in root.walk() if node.op == "load"}
    names |= {step.tensor for step in stage.steps if isinstance(step, StoreStep)}
    found = [program.tensor(name) for name in names]
    largest = max(found, key=lambda tensor: (tensor.size, -itemsize(tensor.dtype), tensor.name))
    return 16 // max(2, itemsize(largest.dtype))


def _thread_order(stage: Stage) -> Literal["rows", "strips"]:
    """Along whichever loop neighbouring elements lie; windows, which overlap, side by side."""
    looped = [step for step in stage.steps if step.loops]
    if not stage.outer:
        return "rows"
    if not looped or any(reduce.guards for reduce in stage.reductions):
        return "strips"
    along = across = 0
    for step in looped:
        for index in _indices(step):
            run = _contiguous_run(index, step.loops)
            along += run >= 8
            across += run < 8 and 0 < abs(index.coefficient(stage.outer[-1])) <= 4
    return "strips" if across > along else "rows"


def _indices(step: ReduceStep | StoreStep) -> list[IndexExpr]:
    found = [node.data[1] for node in step.value.walk() if node.op == "load"]
    return [*found, step.index] if isinstance(step, StoreStep) else found


def _contiguous_run(index: IndexExpr, loops: tuple[LoopVar, ...]) -> int:
    """Elements that lie side by side along the loops."""
    run = 1
    for var in reversed(loops):
        if abs(index.coefficient(var)) != run:
            break
        run *= var.extent
    return run


# --- moves -------------------------------------------------------------------------------------------------


def _per_stage(change: Change) -> Apply:
    """A change of stages that are no products."""
    return per_stage(lambda stage, how: None if is_matmul(stage, how) else change(stage, how))


def _vectorize(program: Program, design: Design) -> Design | None:
    def change(stage: Stage, how: StageDesign) -> StageDesign | None:
        vector = _vector_width(stage, program)
        return (
            replace(how, vector_width=vector) if how.vector_width < vector and how.order != "tiles" and not stage.product else None
        )

    return apply_change(program, design, change)


def _transpose_tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, order="tiles", vector_width=1) if how.order != "tiles" and find_transpose(stage) else None


def _share_windows(stage: Stage, how: StageDesign) -> StageDesign | None:
    made = _window_design(stage) if how.order != "tiles" and find_overlap(stage) else None
    return (
        replace(how, order="tiles", threads=made.threads, coarsening=made.coarsening)
        if made and made.coarsening > 1
        else None
    )


def _reorder_threads(program: Program, design: Design) -> Design | None:
    """Only where the addresses say so."""

    def change(stage: Stage, how: StageDesign) -> StageDesign | None:
        if (
            is_matmul(stage, how)
            or is_elementwise(stage)
            or not stage.outer
            or how.order in ("tiles", _thread_order(stage))
        ):
            return None
        made = _best_design(stage, program)
        return replace(how, order=made.order, threads=made.threads, coarsening=made.coarsening, lanes=made.lanes, vector_width=made.vector_width, split=made.split, cache_row=made.cache_row)

    return apply_change(program, design, change)


def _cache_row(stage: Stage, how: StageDesign) -> StageDesign | None:
    several = len([one for one in split_into_passes(stage) if one.loops]) > 1
    return replace(how, cache_row=True, split=1) if several and not how.cache_row else None


def _split_rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    few = how.split < 64 and stage.rows < _SATURATING_THREADS and how.order != "tiles"
    return replace(how, split=4 * how.split) if few and can_split(stage) else None


def _unsplit_rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, split=1, cache_row=True) if how.split > 1 else None


def _more_threads(stage: Stage, how: StageDesign) -> StageDesign | None:
    """For each row, so that each has fewer elements."""
    if is_elementwise(stage):
        return replace(how, coarsening=how.coarsening // 2) if how.coarsening > 1 and how.order != "tiles" else None
    if how.order == "strips":
        return replace(how, lanes=2 * how.lanes) if how.lanes < 32 and how.lanes < how.threads else None
    if how.coarsening > 1:
        return replace(how, coarsening=how.coarsening // 2)
    return replace(how, threads=2 * how.threads) if how.threads < 1024 else None


def _more_work(stage: Stage, how: StageDesign) -> StageDesign | None:
    """For each thread, so that more of its loads are on the way."""
    if is_elementwise(stage):
        return replace(how, coarsening=2 * how.coarsening) if how.coarsening < 8 and how.order != "tiles" else None
    if how.order == "strips":
        return replace(how, lanes=how.lanes // 2) if how.lanes > 1 else None
    return replace(how, coarsening=2 * how.coarsening) if how.coarsening < 8 else None


def _small_blocks(stage: Stage, how: StageDesign) -> StageDesign | None:
    if how.threads <= 64 or (how.order == "tiles" and is_elementwise(stage)):
        return None
    together = max(1, how.coarsening // 2) if how.order == "rows" and not is_elementwise(stage) else how.coarsening
    return replace(how, threads=how.threads // 2, coarsening=together)


MOVES = (
    *matmul_moves.MOVES,
    Move(
        "tiles",
        "Take squares of the tensor through shared memory, so that both loads and stores go along memory's lines.",
        ("uncoalesced_access", "sector_waste"),
        _per_stage(_transpose_tiles),
    ),
    Move(
        "overlap",
        "Give each thread several outputs one below the other, so that it reads what their windows share once.",
        ("missing_reuse", "warp_stall", "integer_arithmetic"),
        _per_stage(_share_windows),
    ),
    Move(
        "turn",
        "Lay neighbouring threads along the dimension whose elements are neighbours in memory.",
        ("uncoalesced_access", "sector_waste", "l2_thrash"),
        _reorder_threads,
    ),
    Move(
        "widen",
        "Load and store 16 bytes at once: fewer instructions, more bytes on the way.",
        ("narrow_access", "warp_stall", "integer_arithmetic"),
        _vectorize,
    ),
    Move(
        "keep",
        "Keep the row in registers, or in shared memory, between passes instead of reading it again.",
        ("excess_traffic", "l2_thrash", "missing_reuse", "energy_dram_traffic", "energy_l2_traffic"),
        _per_stage(_cache_row),
    ),
    Move(
        "split",
        "Let several blocks share a row and join their parts: rows alone do not fill the device.",
        ("low_parallelism", "tail_effect"),
        _per_stage(_split_rows),
    ),
    Move(
        "whole rows",
        "One block a row, in one kernel: no parts to join, and the row is read once.",
        ("launch_overhead", "unfused_chain", "excess_traffic", "energy_dram_traffic", "energy_idle_clocks"),
        _per_stage(_unsplit_rows),
    ),
    Move(
        "more threads a row",
        "More threads at each row, with fewer elements and registers for each.",
        ("register_pressure", "spills", "low_parallelism", "warp_stall"),
        _per_stage(_more_threads),
    ),
    Move(
        "more work a thread",
        "More elements for each thread, so that more of its loads are on the way and fewer threads meet at barriers.",
        ("barrier_stall", "narrow_access", "warp_stall", "energy_excess_threads"),
        _per_stage(_more_work),
    ),
    Move(
        "small blocks",
        "Blocks of half the size: more of them find room on an SM, and the last wave is shorter.",
        ("occupancy_limiter", "tail_effect", "barrier_stall"),
        _per_stage(_small_blocks),
    ),
    APPROXIMATE_MATH,
    Move(
        "fast mathematics",
        "Use the hardware's own exponential, logarithm, reciprocal and root in place of the exact functions.",
        ("special_functions", "warp_stall", "energy_costly_math"),
        use_fast_math(frozenset({"exp", "log", "div", "sqrt"})),
    ),
)
