"""Initial designs, moves and fallbacks for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from kernelpro.authors.playbook.cuda import matmul_moves
from kernelpro.authors.playbook.cuda.row_stages import can_split
from kernelpro.authors.playbook.cuda.sliding_windows import find_overlap, outputs_per_thread
from kernelpro.authors.playbook.cuda.thread_loop import fit_vector
from kernelpro.authors.playbook.cuda.transpose import find_transpose
from kernelpro.authors.playbook.ir.expressions import itemsize, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, iterations
from kernelpro.authors.playbook.ir.stages import Program, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.contractions import find_contraction, is_matmul
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.moves import (
    APPROXIMATE_MATH,
    DesignChange,
    Move,
    Seed,
    StageChange,
    apply_change,
    distinct_fallbacks,
    distinct_seeds,
    more_exact_math,
    per_stage,
    use_fast_math,
)
from kernelpro.authors.playbook.schedule.passes import is_elementwise, split_into_passes

_SMS = 132
"""Streaming multiprocessors of a large GPU. Work that fills it also fills a smaller one."""
_SATURATING_THREADS = _SMS * 1024
"""Threads that saturate the memory bandwidth of such a GPU."""
_THREADS = 256
_MIN_COALESCED = 32
"""Consecutive threads should read at least this many consecutive elements."""
_ELEMENTS_PER_THREAD = 16
"""Elements of a row per thread in the initial design."""
_LONG_ROW = 32768
"""Rows of at least this length are split over several blocks if there are few rows."""


def seeds(program: Program) -> list[Seed]:
    """Initial designs, the most promising first."""
    best = _design_stages(program, _best_design)
    wider = _design_stages(program, _wider_design)
    plain = _design_stages(program, _plain_design)
    contractions = list(filter(None, map(find_contraction, program.stages)))
    if contractions:
        plans = (
            "Matrix products in tiles on tensor cores, with an epilogue; tiles fit the shape.",
            "The same with smaller tiles, so that more of them run concurrently.",
            "Multiply-add instead of tensor cores.",
        )
    else:
        plans = (
            "One kernel per stage: 16-byte accesses, rows cached in registers, launches fit the shape.",
            "The same with more threads per row, and fewer elements per thread.",
            "Small blocks, scalar accesses, no caching: many warps with little work each.",
        )
    # Without a halo, phases are multiplied with weights that they do not have.
    is_wasteful = any(contraction.right_guards for contraction in contractions)
    seeds = [
        Seed(plans[0], best, is_wasteful),
        Seed(plans[1], wider, is_wasteful),
        Seed(plans[2], plain, is_last_resort=True),
    ]
    warpgroups = _design_stages(program, _warpgroup_design)
    if any(stage.wgmma for stage in warpgroups.stages):
        plan = "Matrix products with wgmma, from tiles that TMA copies to shared memory, with an epilogue."
        seeds.insert(0, Seed(plan, warpgroups))
    halo = _design_stages(program, _halo_design)
    if any(stage.halo for stage in halo.stages):
        plan = (
            "Convolutions that read each input once: a tile with its halo in shared memory serves all taps."
        )
        seeds.insert(0, Seed(plan, halo))
    return distinct_seeds(seeds)


def fallbacks(program: Program, design: Design) -> list[Design]:
    """Safer designs after a failure, the most similar first."""
    steps = [
        more_exact_math(design),
        _design_stages(program, _best_design)
        if any(stage.wgmma or stage.halo for stage in design.stages)
        else design,
        design.with_all_stages(cache_row=False, split=1),
        _design_stages(program, _plain_design),
    ]
    return distinct_fallbacks(design, steps)


# --- initial designs ------------------------------------------------------------------------------


def _design_stages(program: Program, choose: Callable[[Stage, Program], StageDesign]) -> Design:
    return Design("cuda", tuple(choose(stage, program) for stage in program.stages))


def _best_design(stage: Stage, program: Program) -> StageDesign:
    if find_contraction(stage):
        return matmul_moves.tensor_core_design(stage)
    if is_elementwise(stage):
        return _elementwise_design(stage, program)
    if find_overlap(stage) and (design := _window_design(stage)).coarsening > 1:
        return design
    choose = _across_rows_design if _thread_order(stage) == "strips" else _along_rows_design
    return choose(stage, program)


def _warpgroup_design(stage: Stage, program: Program) -> StageDesign:
    """Like the best design, with warpgroup instructions where the operands allow them."""
    warpgroups = matmul_moves.warpgroup_design(stage) if find_contraction(stage) else None
    return warpgroups or _best_design(stage, program)


def _halo_design(stage: Stage, program: Program) -> StageDesign:
    """Like the best design, with convolutions that read each input once."""
    return matmul_moves.halo_design(stage) or _best_design(stage, program)


def _wider_design(stage: Stage, program: Program) -> StageDesign:
    """More threads with less work each than the best design."""
    if find_contraction(stage):
        return matmul_moves.smaller_tile_design(stage)
    design = _best_design(stage, program)
    if is_elementwise(stage):
        tiles = design.order == "tiles"
        return replace(design, threads=512, tile=64) if tiles else replace(design, threads=512, coarsening=1)
    if design.order == "strips":
        return replace(design, lanes=min(32, 2 * design.lanes))
    coarsening = max(1, design.coarsening // 2)
    threads = design.threads if design.order == "tiles" else min(1024, 2 * design.threads)
    return replace(design, threads=threads, coarsening=coarsening)


def _plain_design(stage: Stage, program: Program) -> StageDesign:
    if stage.product:
        return matmul_moves.multiply_add_design(stage)
    if is_elementwise(stage):
        return StageDesign(threads=128)
    if _thread_order(stage) == "strips":
        return StageDesign(order="strips", threads=128)
    return StageDesign(threads=128, coarsening=4 if stage.rows >= 4 * _SMS else 1)


def _elementwise_design(stage: Stage, program: Program) -> StageDesign:
    if find_transpose(stage):
        return StageDesign(order="tiles")
    vector = _vector_width(stage, program)
    packs = stage.rows * iterations(stage.steps[0].loops) // vector
    loads = len(nodes_of([step.value for step in stage.steps], "load"))
    if packs >= 8 * _SATURATING_THREADS and loads <= 2:
        return StageDesign(vector_width=vector, coarsening=4)
    return StageDesign(vector_width=vector, coarsening=2 if packs >= 4 * _SATURATING_THREADS else 1)


def _along_rows_design(stage: Stage, program: Program) -> StageDesign:
    """Short rows: at most a warp for each. Longer rows: up to a block. Few long rows: several blocks for
    each."""
    vector, length = _vector_width(stage, program), stage.row_width
    packs = max(1, length // fit_vector(vector, stage.row_loops))
    lanes = 32 if packs <= 256 else power_of_two(length / _ELEMENTS_PER_THREAD)
    lanes = min(lanes, power_of_two(packs), 1024)
    threads = max(lanes, 128)
    design = StageDesign(threads=threads, coarsening=threads // lanes, vector_width=vector, cache_row=True)
    if can_split(stage) and stage.rows < 2 * _SMS and length >= _LONG_ROW:
        split = min(power_of_two(4 * _SMS / stage.rows), length // (_THREADS * _ELEMENTS_PER_THREAD), 128)
        return replace(design, threads=_THREADS, coarsening=1, split=split, cache_row=False)
    return design


def _across_rows_design(stage: Stage, program: Program) -> StageDesign:
    length, passes = stage.row_width, split_into_passes(stage)
    vector = fit_vector(min(4, _vector_width(stage, program)), stage.outer)
    if (length <= 64 and len(passes) <= 2) or any(step.guards for step in stage.reductions):
        enough_rows = stage.rows >= _SATURATING_THREADS * vector
        return StageDesign(order="strips", vector_width=vector if enough_rows else 1)
    several_passes = _has_several_passes(stage)
    lanes = power_of_two(_SATURATING_THREADS * vector / stage.rows)
    if several_passes:
        lanes = max(lanes, power_of_two(length * vector / 32))
    lanes = max(1, min(lanes, _THREADS * vector // _MIN_COALESCED, 32, power_of_two(length / 4)))
    design = StageDesign(order="strips", lanes=lanes, vector_width=vector, cache_row=several_passes)
    blocks = max(1, stage.rows * lanes // (_THREADS * vector))
    if can_split(stage) and blocks < 2 * _SMS and length >= 64 * lanes:
        split = max(1, min(power_of_two(4 * _SMS / blocks), length // (16 * lanes), 64))
        return replace(design, split=split, cache_row=False)
    return design


def _has_several_passes(stage: Stage) -> bool:
    return sum(bool(row_pass.loops) for row_pass in split_into_passes(stage)) > 1


def _window_design(stage: Stage) -> StageDesign:
    """The most outputs per thread that leave enough threads to saturate the device."""
    maximum = next((n for n in (8, 4, 2) if stage.rows >= n * _SATURATING_THREADS), 1)
    return StageDesign(order="tiles", threads=128, coarsening=outputs_per_thread(stage, maximum))


def _vector_width(stage: Stage, program: Program) -> int:
    """How many elements of the stage's largest tensor fit into 16 bytes."""
    names = {node.data[0] for node in nodes_of(stage.expressions, "load")}
    names |= {step.tensor for step in stage.stores}
    tensors = [program.tensor(name) for name in names]
    largest = max(tensors, key=lambda tensor: (tensor.size, -itemsize(tensor.dtype), tensor.name))
    return 16 // max(2, itemsize(largest.dtype))


def _thread_order(stage: Stage) -> Literal["rows", "strips"]:
    """The thread layout with more coalesced accesses: `rows` (along rows) or `strips` (across rows; always
    for windows)."""
    looped = [step for step in stage.steps if step.loops]
    if not stage.outer:
        return "rows"
    if not looped or any(step.guards for step in stage.reductions):
        return "strips"
    along = across = 0
    for step in looped:
        for index in _indices(step):
            run = _contiguous_run(index, step.loops)
            along += run >= 8
            across += run < 8 and 0 < abs(index.coefficient(stage.outer[-1])) <= 4
    return "strips" if across > along else "rows"


def _indices(step: ReduceStep | StoreStep) -> list[IndexExpr]:
    indices = [node.data[1] for node in nodes_of([step.value], "load")]
    return [*indices, step.index] if isinstance(step, StoreStep) else indices


def _contiguous_run(index: IndexExpr, loops: tuple[LoopVar, ...]) -> int:
    """The number of elements along the loops that are contiguous in memory."""
    run = 1
    for var in reversed(loops):
        if abs(index.coefficient(var)) != run:
            break
        run *= var.extent
    return run


# --- moves ----------------------------------------------------------------------------------------


def _per_stage(change: StageChange) -> DesignChange:
    """A change that applies to stages not written as matrix products."""
    return per_stage(lambda stage, design: None if is_matmul(stage, design) else change(stage, design))


def _vectorize(program: Program, design: Design) -> Design | None:
    def change(stage: Stage, stage_design: StageDesign) -> StageDesign | None:
        vector = _vector_width(stage, program)
        if stage.product or stage_design.order == "tiles" or stage_design.vector_width >= vector:
            return None
        return replace(stage_design, vector_width=vector)

    return apply_change(program, design, change)


def _transpose_tiles(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.order == "tiles" or not find_transpose(stage):
        return None
    return replace(design, order="tiles", vector_width=1)


def _share_windows(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.order == "tiles" or not find_overlap(stage):
        return None
    new = _window_design(stage)
    if new.coarsening == 1:
        return None
    return replace(design, order="tiles", threads=new.threads, coarsening=new.coarsening)


def _reorder_threads(program: Program, design: Design) -> Design | None:
    """Changes the thread layout of stages whose consecutive threads do not access contiguous memory."""

    def change(stage: Stage, stage_design: StageDesign) -> StageDesign | None:
        if is_matmul(stage, stage_design) or is_elementwise(stage) or not stage.outer:
            return None
        if stage_design.order in ("tiles", _thread_order(stage)):
            return None
        best = _best_design(stage, program)
        return replace(
            stage_design,
            order=best.order,
            threads=best.threads,
            coarsening=best.coarsening,
            lanes=best.lanes,
            vector_width=best.vector_width,
            split=best.split,
            cache_row=best.cache_row,
        )

    return apply_change(program, design, change)


def _cache_row(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.cache_row or not _has_several_passes(stage):
        return None
    return replace(design, cache_row=True, split=1)


def _split_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.split >= 64 or design.order == "tiles" or stage.rows >= _SATURATING_THREADS:
        return None
    return replace(design, split=4 * design.split) if can_split(stage) else None


def _unsplit_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    return replace(design, split=1, cache_row=True) if design.split > 1 else None


def _more_threads(stage: Stage, design: StageDesign) -> StageDesign | None:
    """More threads per row, with fewer elements each."""
    if is_elementwise(stage):
        coarsened = design.coarsening > 1 and design.order != "tiles"
        return replace(design, coarsening=design.coarsening // 2) if coarsened else None
    if design.order == "strips":
        lanes = design.lanes
        return replace(design, lanes=2 * lanes) if lanes < 32 and lanes < design.threads else None
    if design.coarsening > 1:
        return replace(design, coarsening=design.coarsening // 2)
    return replace(design, threads=2 * design.threads) if design.threads < 1024 else None


def _more_work(stage: Stage, design: StageDesign) -> StageDesign | None:
    """More elements per thread, with more loads in flight."""
    if is_elementwise(stage) and design.order == "tiles":
        return None
    if design.order == "strips" and not is_elementwise(stage):
        return replace(design, lanes=design.lanes // 2) if design.lanes > 1 else None
    return replace(design, coarsening=2 * design.coarsening) if design.coarsening < 8 else None


def _smaller_blocks(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.threads <= 64 or (design.order == "tiles" and is_elementwise(stage)):
        return None
    rows_per_block = design.order == "rows" and not is_elementwise(stage)
    coarsening = max(1, design.coarsening // 2) if rows_per_block else design.coarsening
    return replace(design, threads=design.threads // 2, coarsening=coarsening)


MOVES = (
    *matmul_moves.MOVES,
    Move(
        "transpose tiles",
        "Move square tiles through shared memory, so that both loads and stores are coalesced.",
        ("uncoalesced_access", "sector_waste"),
        _per_stage(_transpose_tiles),
    ),
    Move(
        "share windows",
        "Give each thread several outputs in a column, so that it loads the inputs that they share once.",
        ("missing_reuse", "warp_stall", "integer_arithmetic"),
        _per_stage(_share_windows),
    ),
    Move(
        "reorder threads",
        "Run consecutive threads along the dimension that is contiguous in memory.",
        ("uncoalesced_access", "sector_waste", "l2_thrash"),
        _reorder_threads,
    ),
    Move(
        "vectorize",
        "Load and store 16 bytes per instruction: fewer instructions, more bytes in flight.",
        ("narrow_access", "warp_stall", "integer_arithmetic"),
        _vectorize,
    ),
    Move(
        "cache rows",
        "Keep the row in registers or shared memory between passes instead of reading it again.",
        ("excess_traffic", "l2_thrash", "missing_reuse", "energy_dram_traffic", "energy_l2_traffic"),
        _per_stage(_cache_row),
    ),
    Move(
        "split rows",
        "Let several thread blocks share a row and combine their partial results: the rows alone do not "
        "fill the device.",
        ("low_parallelism", "tail_effect"),
        _per_stage(_split_rows),
    ),
    Move(
        "whole rows",
        "Use one thread block per row: no partial results to combine, and the row is read once.",
        ("launch_overhead", "unfused_chain", "excess_traffic", "energy_dram_traffic", "energy_idle_clocks"),
        _per_stage(_unsplit_rows),
    ),
    Move(
        "more threads per row",
        "Use more threads per row, with fewer elements and registers each.",
        ("register_pressure", "spills", "low_parallelism", "warp_stall"),
        _per_stage(_more_threads),
    ),
    Move(
        "more work per thread",
        "Give each thread more elements: more loads in flight, and fewer threads at barriers.",
        ("barrier_stall", "narrow_access", "warp_stall", "energy_excess_threads"),
        _per_stage(_more_work),
    ),
    Move(
        "smaller blocks",
        "Halve the block size: more blocks fit on a multiprocessor, and the last wave is shorter.",
        ("occupancy_limiter", "tail_effect", "barrier_stall"),
        _per_stage(_smaller_blocks),
    ),
    APPROXIMATE_MATH,
    Move(
        "fast math",
        "Use hardware instructions for exponential, logarithm, reciprocal and square root.",
        ("special_functions", "warp_stall", "energy_costly_math"),
        use_fast_math(frozenset({"exp", "log", "div", "sqrt", "tanh"})),
    ),
)
