"""Designs of products in CUDA: where to begin, and which move answers which finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.codegen.backend import Move
from kernelpro.authors.playbook.cuda.elementwise import is_elementwise
from kernelpro.authors.playbook.cuda.matmul import fit_tiles, is_matmul, uses_tensor_cores
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.contractions import Contraction, find_contraction
from kernelpro.authors.playbook.ir.expressions import itemsize
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.moves import Apply, apply_change, per_stage

_SMS = 132
"""So many keep a large GPU busy."""
_MIN_SPLIT_DEPTH = 512
"""Terms of the sum that are worth a block of their own."""


def tensor_core_design(stage: Stage) -> StageDesign:
    """Tensor cores, and tiles as large as leaves enough of them."""
    of = _contraction(stage)
    copied = (
        iterations(of.depth) % 8 == iterations(of.columns) % 8 == 0
    )  # other tiles go through registers, of which there are too few
    down, over, deep = 128, 128, 64 if itemsize(of.left.dtype) == 2 and copied else 32
    while _blocks(of, down, over) < _SMS and max(down, over) > 64:
        down, over = (down, over // 2) if over >= down else (down // 2, over)
    threads = 256 if down * over > 64 * 64 else 128
    how = _fit(stage, StageDesign(order="tiles", tile_m=down, tile_n=over, tile_k=deep, threads=threads))
    if stage.product and 2 * _blocks(of, how.tile_m, how.tile_n) <= _SMS and iterations(of.depth) >= 4 * _MIN_SPLIT_DEPTH:
        split = min(power_of_two(_SMS / _blocks(of, how.tile_m, how.tile_n)), iterations(of.depth) // _MIN_SPLIT_DEPTH, 16)
        return replace(how, split=split)
    return how


def smaller_tile_design(stage: Stage) -> StageDesign:
    how = tensor_core_design(stage)
    return _fit(stage, _smaller_tiles(how) or replace(how, tile_k=16, pipeline_stages=4))


def multiply_add_design(stage: Stage) -> StageDesign:
    """Multiply-add instead of tensor cores."""
    return _fit(stage, StageDesign(order="rows", tile_m=64, tile_n=64, tile_k=16, threads=64, pipeline_stages=2))


def _contraction(stage: Stage) -> Contraction:
    found = find_contraction(stage)
    assert found, "the caller has looked"
    return found


def _blocks(of: Contraction, down: int, over: int) -> int:
    return iterations(of.batch) * -(-iterations(of.rows) // down) * -(-iterations(of.columns) // over)


def _fit(stage: Stage, how: StageDesign) -> StageDesign:
    """What is left of the stage, where it is more than the product's own elements, is done along rows."""
    of = _contraction(stage)
    how = fit_tiles(of, how)
    vector, columns = 16 // max(2, itemsize(of.left.dtype)), iterations(of.columns)
    lanes = min(max(32, power_of_two(columns / 16)), how.threads)
    return replace(how, cache_row=True, vector_width=vector, coarsening=1 if is_elementwise(stage) else how.threads // lanes)


# --- moves -------------------------------------------------------------------------------------------------


def _per_matmul(change: Callable[[StageDesign], StageDesign | None]) -> Apply:
    """A change of products, as far as their shapes allow it."""

    def apply(stage: Stage, how: StageDesign) -> StageDesign | None:
        changed_design = change(how) if is_matmul(stage, how) else None
        return _fit(stage, changed_design) if changed_design else None

    return per_stage(apply)


def _use_tensor_cores(program: Program, design: Design) -> Design | None:
    def change(stage: Stage, how: StageDesign) -> StageDesign | None:
        found = find_contraction(stage)
        if found is None or how.order == "tiles":
            return None
        made = tensor_core_design(stage)
        useful = stage.product is None or uses_tensor_cores(found, made, design.precision)
        return made if useful else None

    return apply_change(program, design, change)


def _larger_tiles(how: StageDesign) -> StageDesign | None:
    if how.tile_m * how.tile_n >= 128 * 256:
        return None
    return (
        replace(how, tile_n=2 * how.tile_n, threads=256)
        if how.tile_n <= how.tile_m
        else replace(how, tile_m=2 * how.tile_m, threads=256)
    )


def _smaller_tiles(how: StageDesign) -> StageDesign | None:
    if how.tile_m * how.tile_n <= 32 * 64:
        return None
    threads = 128 if how.tile_m * how.tile_n <= 128 * 128 else how.threads
    return (
        replace(how, tile_n=how.tile_n // 2, threads=threads)
        if how.tile_n > how.tile_m
        else replace(how, tile_m=how.tile_m // 2, threads=threads)
    )


def _deeper_tiles(how: StageDesign) -> StageDesign | None:
    return replace(how, tile_k=2 * how.tile_k) if how.tile_k < 64 else None


def _more_pipeline_stages(how: StageDesign) -> StageDesign | None:
    return replace(how, pipeline_stages=how.pipeline_stages + 1) if how.pipeline_stages < 5 else None


def _fewer_threads(how: StageDesign) -> StageDesign | None:
    return replace(how, threads=how.threads // 2) if how.threads > 64 else None


def _more_threads(how: StageDesign) -> StageDesign | None:
    return replace(how, threads=2 * how.threads) if how.threads < 512 else None


def _split_k(stage: Stage, how: StageDesign) -> StageDesign | None:
    if not stage.product or 2 * how.split * _MIN_SPLIT_DEPTH // 4 > iterations(_contraction(stage).depth) or how.split >= 32:
        return None
    return replace(how, split=2 * how.split)


def _no_split_k(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, split=1) if stage.product and how.split > 1 else None


MOVES = (
    Move(
        "tensor cores",
        "Make the product in tiles on tensor cores.",
        ("tensor_cores_idle", "missing_reuse", "energy_wide_precision"),
        _use_tensor_cores,
    ),
    Move(
        "larger tiles",
        "Larger tiles of the product: each element that is fetched is used more often.",
        ("missing_reuse", "l2_thrash", "excess_traffic", "energy_dram_traffic", "energy_l2_traffic"),
        _per_matmul(_larger_tiles),
    ),
    Move(
        "more stages",
        "One more tile on the way while others are multiplied.",
        ("missing_pipelining", "missing_async_copy", "warp_stall"),
        _per_matmul(_more_pipeline_stages),
    ),
    Move(
        "share the depth",
        "Let several blocks share the terms of a tile's sums, and add up their parts: tiles alone do not fill the device.",
        ("low_parallelism", "tail_effect"),
        per_stage(_split_k),
    ),
    Move(
        "smaller tiles",
        "Smaller tiles of the product: more blocks, fewer registers.",
        ("low_parallelism", "tail_effect", "register_pressure", "spills", "occupancy_limiter"),
        _per_matmul(_smaller_tiles),
    ),
    Move(
        "deeper tiles",
        "Fetch twice as many terms of the sum at once: half as many barriers.",
        ("barrier_stall",),
        _per_matmul(_deeper_tiles),
    ),
    Move(
        "more threads a tile",
        "Twice as many threads: fewer results and registers for each.",
        ("spills", "register_pressure", "warp_stall"),
        _per_matmul(_more_threads),
    ),
    Move(
        "fewer threads a tile",
        "Half as many threads: what a warp takes from shared memory it uses more often.",
        ("barrier_stall", "bank_conflicts", "warp_stall"),
        _per_matmul(_fewer_threads),
    ),
    Move(
        "whole depth",
        "One block for each tile of the product: no parts to add up, and what follows in the same kernel.",
        ("launch_overhead", "unfused_chain", "excess_traffic", "energy_dram_traffic", "energy_idle_clocks"),
        per_stage(_no_split_k),
    ),
)
