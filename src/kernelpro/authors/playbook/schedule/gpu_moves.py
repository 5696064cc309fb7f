"""Moves that the CUDA and Triton backends share: the tile sizes and the pipeline of a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.moves import DesignChange, Move

TileChange = Callable[[StageDesign], StageDesign | None]
"""The new design of a matrix product; None if the change does not apply."""
PerMatmul = Callable[[TileChange], DesignChange]
"""Applies a change to the stages that a backend writes as matrix products."""


def grow_tile(design: StageDesign) -> StageDesign | None:
    """Doubles the shorter side of the tile, up to 128 x 256."""
    if design.tile_m * design.tile_n >= 128 * 256:
        return None
    if design.tile_n <= design.tile_m:
        return replace(design, tile_n=2 * design.tile_n, threads=256)
    return replace(design, tile_m=2 * design.tile_m, threads=256)


def shrink_tile(design: StageDesign, min_results: int) -> StageDesign | None:
    """Halves the longer side of the tile, unless it has only `min_results` elements."""
    results = design.tile_m * design.tile_n
    if results <= min_results:
        return None
    threads = 128 if results <= 128 * 128 else design.threads
    if design.tile_n > design.tile_m:
        return replace(design, tile_n=design.tile_n // 2, threads=threads)
    return replace(design, tile_m=design.tile_m // 2, threads=threads)


def larger_tiles(per_matmul: PerMatmul) -> Move:
    """The move to larger tiles."""
    return Move(
        "larger tiles",
        "Use larger tiles for the matrix product: each loaded element is reused more often.",
        ("missing_reuse", "l2_thrash", "excess_traffic", "energy_dram_traffic", "energy_l2_traffic"),
        per_matmul(grow_tile),
    )


def smaller_tiles(per_matmul: PerMatmul, min_results: int) -> Move:
    """The move to smaller tiles."""
    return Move(
        "smaller tiles",
        "Use smaller tiles for the matrix product: more thread blocks, fewer registers.",
        ("low_parallelism", "tail_effect", "register_pressure", "spills", "occupancy_limiter"),
        per_matmul(lambda design: shrink_tile(design, min_results)),
    )


def deeper_tiles(per_matmul: PerMatmul, max_k: int, diagnostics: tuple[str, ...]) -> Move:
    """The move to tiles that are twice as deep along k."""

    def change(design: StageDesign) -> StageDesign | None:
        return replace(design, tile_k=2 * design.tile_k) if design.tile_k < max_k else None

    return Move(
        "deeper tiles",
        "Load twice as many terms of the sum at once: half as many barriers.",
        diagnostics,
        per_matmul(change),
    )


def more_pipeline_stages(per_matmul: PerMatmul) -> Move:
    """The move to one more pipeline stage."""

    def change(design: StageDesign) -> StageDesign | None:
        stages = design.pipeline_stages
        return replace(design, pipeline_stages=stages + 1) if stages < 5 else None

    return Move(
        "more pipeline stages",
        "Keep one more tile in flight while the tensor cores work.",
        ("missing_pipelining", "missing_async_copy", "warp_stall"),
        per_matmul(change),
    )
