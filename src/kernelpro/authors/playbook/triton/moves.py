"""Designs for Triton: where to begin, and which move answers which finding."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelpro.authors.playbook.codegen.backend import Move, Seed
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import find_contraction
from kernelpro.authors.playbook.ir.indices import LoopVar
from kernelpro.authors.playbook.ir.stages import Program, Stage, StoreStep
from kernelpro.authors.playbook.schedule.moves import (
    APPROXIMATE_MATH,
    apply_change,
    more_exact_math,
    use_fast_math,
    distinct_fallbacks,
    distinct_seeds,
    per_stage,
)
from kernelpro.authors.playbook.triton.row_kernel import row_fits_registers
from kernelpro.authors.playbook.triton.stage_kernel import find_transpose, broadcast_rows, is_elementwise

_SATURATING_PROGRAMS = 512
"""So many programs keep the largest GPUs of today busy: about four for each multiprocessor."""
_MIN_SPLIT_ELEMENTS = 1 << 20
"""Elements that are not worth a second kernel."""
_TILE_ELEMENTS = 4096
"""Elements that a program of 256 threads has on the way at once."""


def seeds(program: Program) -> list[Seed]:
    """The first is the one to bet on."""
    best = Design("triton", tuple(initial_design(stage) for stage in program.stages))
    found = [
        Seed(
            "A kernel a stage: rows in registers, 16-byte accesses, products on tensor cores, tiles that fit the shape.",
            best,
        ),
        Seed(
            "Half the threads, smaller tiles, more of them at the same time.",
            apply_change(program, best, _fewer_threads) or best,
        ),
        Seed(
            "Rows are gone over in stretches instead of kept, so that more of them are on the way.",
            apply_change(program, best, _reread_row) or best,
        ),
        Seed(
            "Threads have rows of their own where these are short, and share them where not.",
            apply_change(program, best, _swap_order) or best,
        ),
    ]
    return distinct_seeds(found)


def fallbacks(program: Program, design: Design) -> list[Design]:
    careful = [
        replace(StageDesign(cache_row=False, vector_width=4, threads=128), order=how.order) for how in design.stages
    ]
    steps = [
        more_exact_math(design),
        design.with_all_stages(pipeline_stages=2, tile_m=64, tile_n=64, tile_k=32, threads=128, coarsening=1, split=1),
        replace(design, stages=tuple(replace(how, tile_m=32, tile_n=32, tile_k=32, pipeline_stages=1) for how in careful)),
    ]
    return distinct_fallbacks(design, steps)


# --- designs to begin with ---------------------------------------------------------------------------------


def initial_design(stage: Stage) -> StageDesign:
    if find_contraction(stage):
        return _matmul_design(stage)
    if is_elementwise(stage):
        return _elementwise_design(stage)
    if any(reduce.guards for reduce in stage.reductions):
        return StageDesign(order="strips", threads=256, vector_width=2)
    return _row_design(stage)


def _matmul_design(stage: Stage) -> StageDesign:
    found = find_contraction(stage)
    assert found
    rows, columns, batch = (
        prod(v.extent for v in loops) for loops in (found.rows, found.columns, found.batch)
    )
    down, over, deep = (128, 128, 32) if found.left.dtype == "float32" else (128, 256, 64)
    while batch * -(-rows // down) * -(-columns // over) < _SATURATING_PROGRAMS // 4 and max(down, over) > 64:
        down, over = (down, over // 2) if over >= down else (down // 2, over)
    threads = 256 if down * over > 64 * 64 else 128
    return StageDesign(order="tiles", cache_row=True, tile_m=down, tile_n=over, tile_k=deep, threads=threads, vector_width=8)


def _elementwise_design(stage: Stage) -> StageDesign:
    if find_transpose(stage):
        return StageDesign(order="tiles", threads=256, coarsening=64)
    rows = broadcast_rows(stage)
    if not rows:
        return StageDesign(order="strips", threads=256, vector_width=8 if _element_bytes(stage) > 2 else 16)
    loops = (*stage.outer, *stage.steps[0].loops)
    width = prod(var.extent for var in loops[rows:])
    if width <= _TILE_ELEMENTS:
        return StageDesign(cache_row=True, coarsening=max(_TILE_ELEMENTS // 2 // power_of_two(width), 1), threads=256)
    return StageDesign(threads=256, vector_width=8, split=power_of_two(-(-width // 2048)))


def _row_design(stage: Stage) -> StageDesign:
    width, rows = stage.row_width, stage.rows
    padded = power_of_two(width)
    if _is_short_window(stage):
        return StageDesign(order="strips", threads=256, vector_width=2)
    if _rows_are_contiguous(stage):
        together = min(64, power_of_two(rows))
        if padded * together <= _TILE_ELEMENTS * 4:
            return StageDesign(cache_row=True, coarsening=together, threads=256)
        return StageDesign(
            coarsening=together,
            threads=256,
            vector_width=16,
            split=_split_count(-(-rows // together), width, _TILE_ELEMENTS // together),
        )
    if row_fits_registers(stage) and (rows >= _SATURATING_PROGRAMS // 4 or padded <= _TILE_ELEMENTS):
        together = min(max(_TILE_ELEMENTS // 2 // padded, 1), max(power_of_two(rows) // 256, 1))
        return StageDesign(cache_row=True, coarsening=together, threads=min(max(padded * together // 16, 64), 1024))
    return StageDesign(threads=512, vector_width=8, split=_split_count(rows, width, _TILE_ELEMENTS))


def _split_count(rows: int, width: int, stretch: int) -> int:
    """Programs for each row, so that there are enough in all and each has something to do."""
    if rows >= _SATURATING_PROGRAMS // 2 or rows * width < _MIN_SPLIT_ELEMENTS:
        return 1
    return max(min(power_of_two(-(-_SATURATING_PROGRAMS // rows)), power_of_two(width // stretch), 64), 1)


def _is_short_window(stage: Stage) -> bool:
    """A few elements for each row, none of which is needed twice: threads had better have rows of their own."""
    once = len(stage.reductions) > 0 and not any(step.loops for step in stage.steps if isinstance(step, StoreStep))
    depends = any(node.op == "row" for reduce in stage.reductions for node in reduce.value.walk())
    short = (
        stage.row_width <= 64 and (_rows_are_contiguous(stage) or stage.reductions[0].loops[-1].extent < 16)
        if once
        else False
    )
    return short and not depends


def _rows_are_contiguous(stage: Stage) -> bool:
    """Elements that lie side by side in memory belong to different rows."""
    found: list[bool] = []
    for step in stage.steps:
        loops: tuple[LoopVar, ...] = step.loops
        for node in step.value.walk():
            if node.op == "load" and node.variables & set(loops) and stage.outer:
                index = node.data[1]
                found.append(
                    index.coefficient(stage.outer[-1]) == 1
                    and not any(index.coefficient(var) == 1 for var in loops)
                )
    return bool(found) and sum(found) * 2 > len(found)


def _element_bytes(stage: Stage) -> int:
    types = {node.dtype for step in stage.steps for node in step.value.walk() if node.op == "load"}
    return 2 if types and types <= {"float16", "bfloat16"} else 4


# --- moves -------------------------------------------------------------------------------------------------


def _is_matmul(stage: Stage, how: StageDesign) -> bool:
    return bool(find_contraction(stage)) and (stage.product is not None or how.order == "tiles")


def _is_row_kernel(stage: Stage, how: StageDesign) -> bool:
    """Written by triton_rows.py."""
    return how.order == "rows" and not stage.product and (not is_elementwise(stage) or broadcast_rows(stage) > 0)


def _cache_row(stage: Stage, how: StageDesign) -> StageDesign | None:
    """More threads than a stretch would need: a whole row has to find room in their registers."""
    if how.cache_row or not _is_row_kernel(stage, how) or not row_fits_registers(stage) or is_elementwise(stage):
        return None
    return replace(how, cache_row=True, split=1, threads=min(max(how.threads, power_of_two(stage.row_width) * how.coarsening // 16), 1024))


def _reread_row(stage: Stage, how: StageDesign) -> StageDesign | None:
    return (
        replace(how, cache_row=False, vector_width=8) if how.cache_row and _is_row_kernel(stage, how) and not is_elementwise(stage) else None
    )


def _split_rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    if not _is_row_kernel(stage, how) or stage.row_width < 2 * _TILE_ELEMENTS or how.split >= 64:
        return None
    return replace(how, cache_row=False, split=2 * how.split, vector_width=max(how.vector_width, 8))


def _more_rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    room = 2 * how.coarsening * (power_of_two(stage.row_width) if how.cache_row else 16) <= 4 * _TILE_ELEMENTS
    return (
        replace(how, coarsening=2 * how.coarsening)
        if _is_row_kernel(stage, how) and room and 2 * how.coarsening <= stage.rows
        else None
    )


def _fewer_rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, coarsening=how.coarsening // 2) if _is_row_kernel(stage, how) and how.coarsening > 1 else None


def _more_elements(stage: Stage, how: StageDesign) -> StageDesign | None:
    streams = how.order == "strips" or (_is_row_kernel(stage, how) and not how.cache_row)
    return replace(how, vector_width=2 * how.vector_width) if streams and how.vector_width < 16 and not _is_matmul(stage, how) else None


def _more_threads(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, threads=2 * how.threads) if how.threads < 1024 and not _is_matmul(stage, how) else None


def _fewer_threads(stage: Stage, how: StageDesign) -> StageDesign | None:
    if _is_matmul(stage, how):
        return _smaller_tiles(stage, how)
    return replace(how, threads=how.threads // 2) if how.threads > 64 else None


def _swap_order(stage: Stage, how: StageDesign) -> StageDesign | None:
    """Flat instead of rows, and the other way round."""
    if is_elementwise(stage) or stage.rows == 1 or _is_matmul(stage, how) or how.order == "tiles":
        return None
    if how.order == "rows":
        return replace(how, order="strips", vector_width=2, threads=256) if stage.row_width <= 64 else None
    width = power_of_two(stage.row_width)
    return replace(how, order="rows", cache_row=width <= _TILE_ELEMENTS, coarsening=max(_TILE_ELEMENTS // 2 // width, 1), threads=256, vector_width=8)


def _transpose_tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    ready = is_elementwise(stage) and how.order != "tiles" and find_transpose(stage)
    return replace(how, order="tiles", coarsening=64, threads=256) if ready else None


def _use_tensor_cores(stage: Stage, how: StageDesign) -> StageDesign | None:
    return None if how.order == "tiles" or not find_contraction(stage) else replace(how, order="tiles", threads=256)


def _larger_tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    if not _is_matmul(stage, how) or how.tile_m * how.tile_n >= 128 * 256:
        return None
    return (
        replace(how, tile_n=2 * how.tile_n, threads=256)
        if how.tile_n <= how.tile_m
        else replace(how, tile_m=2 * how.tile_m, threads=256)
    )


def _smaller_tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    if not _is_matmul(stage, how) or how.tile_m * how.tile_n <= 64 * 64:
        return None
    threads = 128 if how.tile_m * how.tile_n <= 128 * 128 else how.threads
    return (
        replace(how, tile_n=how.tile_n // 2, threads=threads)
        if how.tile_n > how.tile_m
        else replace(how, tile_m=how.tile_m // 2, threads=threads)
    )


def _deeper_tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, tile_k=2 * how.tile_k) if _is_matmul(stage, how) and how.tile_k < 128 else None


def _more_pipeline_stages(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, pipeline_stages=how.pipeline_stages + 1) if _is_matmul(stage, how) and how.pipeline_stages < 5 else None


MOVES = (
    Move(
        "tensor cores",
        "Read the sum as a product of two matrices and make it in tiles on tensor cores.",
        ("tensor_cores_idle", "missing_reuse", "energy_wide_precision"),
        per_stage(_use_tensor_cores),
    ),
    Move(
        "keep",
        "Keep the whole row in registers, so that it is read once however often it is needed.",
        ("excess_traffic", "l2_thrash", "energy_dram_traffic", "energy_l2_traffic"),
        per_stage(_cache_row),
    ),
    Move(
        "split",
        "Let several programs share a row and join their parts in a second kernel: too few rows do not fill the GPU.",
        ("low_parallelism", "tail_effect"),
        per_stage(_split_rows),
    ),
    Move(
        "squares",
        "Go over squares, so that what is read and what is written are both coalesced.",
        ("uncoalesced_access", "sector_waste"),
        per_stage(_transpose_tiles),
    ),
    Move(
        "larger tiles",
        "Larger tiles of the product: each element that is fetched is used more often.",
        ("missing_reuse", "l2_thrash", "excess_traffic", "energy_dram_traffic", "energy_l2_traffic"),
        per_stage(_larger_tiles),
    ),
    Move(
        "more stages",
        "One more fetch on the way while tensor cores work.",
        ("missing_pipelining", "missing_async_copy", "warp_stall"),
        per_stage(_more_pipeline_stages),
    ),
    Move(
        "smaller tiles",
        "Smaller tiles of the product: more programs, fewer registers.",
        ("low_parallelism", "tail_effect", "register_pressure", "spills", "occupancy_limiter"),
        per_stage(_smaller_tiles),
    ),
    Move(
        "deeper tiles",
        "Fetch twice as many terms of the sum at once: half as many barriers.",
        ("barrier_stall", "serialized_wgmma"),
        per_stage(_deeper_tiles),
    ),
    Move(
        "more at once",
        "Twice as many elements for each thread: more bytes on the way, fewer instructions for addresses.",
        ("narrow_access", "warp_stall", "integer_arithmetic", "dram_roof", "energy_excess_threads"),
        per_stage(_more_elements),
    ),
    Move(
        "more rows",
        "Twice as many rows for each program: what rows share is read less often, and more is on the way.",
        ("warp_stall", "barrier_stall", "narrow_access"),
        per_stage(_more_rows),
    ),
    Move(
        "more threads",
        "Twice as many threads: fewer registers for each, and more loads on the way.",
        ("spills", "register_pressure", "warp_stall"),
        per_stage(_more_threads),
    ),
    Move(
        "fewer threads",
        "Half as many threads: fewer of them meet at a barrier, and more programs fit beside each other.",
        ("barrier_stall", "occupancy_limiter", "tail_effect"),
        per_stage(_fewer_threads),
    ),
    Move(
        "read again",
        "Go over the row in stretches: it is read more than once, but needs few registers.",
        ("spills", "register_pressure", "occupancy_limiter"),
        per_stage(_reread_row),
    ),
    Move(
        "fewer rows",
        "Half as many rows for each program: more programs.",
        ("low_parallelism", "tail_effect"),
        per_stage(_fewer_rows),
    ),
    Move(
        "turn",
        "Threads with rows of their own instead of rows that threads share, or the other way round.",
        ("uncoalesced_access", "sector_waste", "barrier_stall"),
        per_stage(_swap_order),
    ),
    APPROXIMATE_MATH,
    Move(
        "fast mathematics",
        "Use the hardware's own exponential, logarithm and reciprocal in place of the exact functions.",
        ("special_functions", "warp_stall", "energy_costly_math"),
        use_fast_math(frozenset({"exp", "log", "div", "tanh"})),
    ),
)
