"""Initial designs and moves of matrix products in CUDA."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.cuda.halo_tiles import Convolution, convolution_of, fit_halo_tiles
from kernelpro.authors.playbook.cuda.matmul import fit_tiles, uses_tensor_cores
from kernelpro.authors.playbook.cuda.phase_tiles import fit_phase_tiles, shared_bytes
from kernelpro.authors.playbook.cuda.warpgroup_matmul import fit_warpgroup_tiles, fits_warpgroups
from kernelpro.authors.playbook.ir.expressions import itemsize
from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.contractions import Contraction, find_contraction, is_matmul
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.gpu_moves import (
    TileChange,
    deeper_tiles,
    larger_tiles,
    more_pipeline_stages,
    shrink_tile,
    smaller_tiles,
)
from kernelpro.authors.playbook.schedule.moves import DesignChange, Move, apply_change, per_stage
from kernelpro.authors.playbook.schedule.passes import is_elementwise

_SMS = 132
"""Streaming multiprocessors of a large GPU. One block for each keeps it busy."""
_MIN_SPLIT_DEPTH = 512
"""Split-K gives each block at least this many terms of the sum."""
_MIN_RESULTS = 32 * 64
"""Elements of the smallest tile."""
_HALO_POSITIONS, _MIN_HALO_POSITIONS, _HALO_LINE, _HALO_COLUMNS = 256, 64, 64, 128
"""Positions of a tile of a convolution with a halo, of the smallest one, in a line of it, and its columns."""
_PHASE_POSITIONS, _PHASE_RESULTS = 128, 128
"""Positions of a tile of a transposed convolution, and results of a position: columns times phases."""
_RESERVED_BYTES = 1024
"""Shared memory that the system reserves for each block."""


def tensor_core_design(stage: Stage) -> StageDesign:
    """Tensor cores, with the largest tiles that give each multiprocessor a block; split-K if even small tiles
    do not."""
    contraction = _contraction(stage)
    depth, columns = iterations(contraction.depth), iterations(contraction.columns)
    # Tiles that cannot be copied asynchronously go through registers, which are too few for deep tiles.
    async_copied = depth % 8 == columns % 8 == 0
    tile_k = 64 if itemsize(contraction.left.dtype) == 2 and async_copied else 32
    tile_m, tile_n = 128, 128
    while _blocks(contraction, tile_m, tile_n) < _SMS and max(tile_m, tile_n) > 64:
        tile_m, tile_n = (tile_m, tile_n // 2) if tile_n >= tile_m else (tile_m // 2, tile_n)
    threads = 256 if tile_m * tile_n > 64 * 64 else 128
    design = _fit(
        stage, StageDesign(order="tiles", tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, threads=threads)
    )
    blocks = _blocks(contraction, design.tile_m, design.tile_n)
    if stage.product and 2 * blocks <= _SMS and depth >= 4 * _MIN_SPLIT_DEPTH:
        return replace(design, split=min(power_of_two(_SMS / blocks), depth // _MIN_SPLIT_DEPTH, 16))
    return design


def smaller_tile_design(stage: Stage) -> StageDesign:
    """Tensor cores with smaller tiles than `tensor_core_design`."""
    design = tensor_core_design(stage)
    return _fit(stage, shrink_tile(design, _MIN_RESULTS) or replace(design, tile_k=16, pipeline_stages=4))


def warpgroup_design(stage: Stage) -> StageDesign | None:
    """TMA and wgmma, with the largest tiles that leave a block for each multiprocessor; None if the operands
    do not allow it."""
    contraction = _contraction(stage)
    design = StageDesign(order="tiles", tile_m=128, tile_n=256, pipeline_stages=4, wgmma=True)
    if not fits_warpgroups(contraction, design, "tf32"):
        return None
    while _blocks(contraction, design.tile_m, design.tile_n) < _SMS and design.tile_n > 64:
        design = replace(design, tile_n=design.tile_n // 2, pipeline_stages=6)
    return _fit(stage, design)


def halo_design(stage: Stage) -> StageDesign | None:
    """The input of a tile with its halo in shared memory, with tiles that leave a block for each
    multiprocessor; None if the stage is no convolution that allows it."""
    conv = convolution_of(stage, "tf32")
    if conv is None:
        return None
    if conv.outputs > 1:
        return _phase_design(conv, stage.max_shared_bytes)
    columns, positions = min(power_of_two(conv.column.extent), _HALO_COLUMNS), _HALO_POSITIONS
    outer = iterations(conv.outer) * -(-conv.column.extent // columns)
    results = outer * conv.x.positions * conv.y.positions
    while results < _SMS * positions and positions > _MIN_HALO_POSITIONS:
        positions //= 2
    line = min(power_of_two(conv.x.positions), positions, _HALO_LINE if conv.pitch else positions)
    design = StageDesign(
        order="tiles",
        halo=True,
        tile_m=line,
        coarsening=positions // line,
        tile_n=columns,
        threads=128 if columns * positions <= 32 * 256 else 256,
    )
    return _fit(stage, design)


def _phase_design(conv: Convolution, max_shared_bytes: int) -> StageDesign:
    """All weights in shared memory, if they fit, with two blocks for each multiprocessor or one large one.
    Lines have 16 positions: a warp has several of them below each other, which share most inputs."""
    columns = min(power_of_two(conv.column.extent), max(_PHASE_RESULTS // power_of_two(conv.outputs), 16))
    results = iterations(conv.outer) * -(-conv.column.extent // columns) * conv.x.positions * conv.y.positions

    def design(positions: int, threads: int) -> StageDesign:
        line = 16 if conv.pitch else positions
        blocks_of_one_tile = results / positions
        tiles = power_of_two(blocks_of_one_tile / (8 * _SMS) + 1) // 2
        tile = StageDesign(
            order="tiles", halo=True, tile_m=line, coarsening=positions // line, tile_n=columns
        )
        tile = replace(tile, threads=threads, tiles=max(min(tiles, 16), 1))
        return fit_phase_tiles(conv, tile, max_shared_bytes)

    if results < 2 * _SMS * _PHASE_POSITIONS:
        return design(_PHASE_POSITIONS // 2, 128)
    small = design(_PHASE_POSITIONS, 128)
    two_fit = 2 * (shared_bytes(conv, small) + _RESERVED_BYTES) <= max_shared_bytes + _RESERVED_BYTES
    return small if two_fit else design(2 * _PHASE_POSITIONS, 256)


def multiply_add_design(stage: Stage) -> StageDesign:
    """Multiply-add instead of tensor cores."""
    design = StageDesign(order="rows", tile_m=64, tile_n=64, tile_k=16, threads=64, pipeline_stages=2)
    return _fit(stage, design)


def _contraction(stage: Stage) -> Contraction:
    contraction = find_contraction(stage)
    assert contraction, "the caller checks that the stage is a contraction"
    return contraction


def _blocks(contraction: Contraction, tile_m: int, tile_n: int) -> int:
    rows, columns = iterations(contraction.rows), iterations(contraction.columns)
    return iterations(contraction.batch) * -(-rows // tile_m) * -(-columns // tile_n)


def _fit(stage: Stage, design: StageDesign) -> StageDesign:
    """The design fit to the product; also for the row kernel that runs steps that the epilogue cannot."""
    if design.halo and (conv := convolution_of(stage, "tf32")):
        return (fit_phase_tiles if conv.outputs > 1 else fit_halo_tiles)(conv, design, stage.max_shared_bytes)
    contraction = _contraction(stage)
    design = (fit_warpgroup_tiles if design.wgmma else fit_tiles)(contraction, design, stage.max_shared_bytes)
    lanes = min(max(32, power_of_two(iterations(contraction.columns) / 16)), design.threads)
    return replace(
        design,
        cache_row=True,
        vector_width=16 // max(2, itemsize(contraction.left.dtype)),
        coarsening=1 if is_elementwise(stage) else design.threads // lanes,
    )


# --- moves ----------------------------------------------------------------------------------------


def _per_matmul(change: TileChange) -> DesignChange:
    """A change that applies to matrix products, within the limits of their shapes."""

    def apply(stage: Stage, design: StageDesign) -> StageDesign | None:
        changed_design = change(design) if is_matmul(stage, design) else None
        return _fit(stage, changed_design) if changed_design else None

    return per_stage(apply)


def _use_tensor_cores(program: Program, design: Design) -> Design | None:
    def change(stage: Stage, stage_design: StageDesign) -> StageDesign | None:
        contraction = find_contraction(stage)
        if contraction is None or stage_design.order == "tiles":
            return None
        new_design = tensor_core_design(stage)
        useful = stage.product is None or uses_tensor_cores(contraction, new_design, design.precision)
        return new_design if useful else None

    return apply_change(program, design, change)


def _use_warpgroups(stage: Stage, design: StageDesign) -> StageDesign | None:
    return None if design.wgmma or not is_matmul(stage, design) else warpgroup_design(stage)


def _use_halo(stage: Stage, design: StageDesign) -> StageDesign | None:
    return None if design.halo or not is_matmul(stage, design) else halo_design(stage)


def _fewer_threads(design: StageDesign) -> StageDesign | None:
    return replace(design, threads=design.threads // 2) if design.threads > 64 and not design.wgmma else None


def _more_threads(design: StageDesign) -> StageDesign | None:
    return replace(design, threads=2 * design.threads) if design.threads < 512 and not design.wgmma else None


def _split_k(stage: Stage, design: StageDesign) -> StageDesign | None:
    if not stage.product or design.split >= 32 or design.wgmma:
        return None
    too_shallow = 2 * design.split * _MIN_SPLIT_DEPTH // 4 > iterations(_contraction(stage).depth)
    return None if too_shallow else replace(design, split=2 * design.split)


def _no_split_k(stage: Stage, design: StageDesign) -> StageDesign | None:
    return replace(design, split=1) if stage.product and design.split > 1 else None


MOVES = (
    Move(
        "tensor cores",
        "Compute the matrix product in tiles on tensor cores.",
        ("tensor_cores_idle", "missing_reuse", "energy_wide_precision"),
        _use_tensor_cores,
    ),
    Move(
        "warpgroup instructions",
        "Multiply with wgmma, from tiles that TMA copies to shared memory, instead of operands in registers.",
        ("slow_mma_family",),
        per_stage(_use_warpgroups),
    ),
    Move(
        "halo in shared memory",
        "Copy what a tile of outputs reads of the input to shared memory once, and take all taps from there.",
        ("l2_thrash", "excess_traffic", "missing_reuse", "warp_stall", "integer_arithmetic"),
        per_stage(_use_halo),
    ),
    larger_tiles(_per_matmul),
    more_pipeline_stages(_per_matmul),
    Move(
        "split-K",
        "Let several thread blocks share the sum of each tile and add their partial results: "
        "the tiles alone do not fill the device.",
        ("low_parallelism", "tail_effect"),
        per_stage(_split_k),
    ),
    smaller_tiles(_per_matmul, _MIN_RESULTS),
    deeper_tiles(_per_matmul, 64, ("barrier_stall",)),
    Move(
        "more threads per tile",
        "Use twice as many threads for each tile: fewer results and registers per thread.",
        ("spills", "register_pressure", "warp_stall"),
        _per_matmul(_more_threads),
    ),
    Move(
        "fewer threads per tile",
        "Use half as many threads for each tile: a warp reuses what it reads from shared memory more often.",
        ("barrier_stall", "bank_conflicts", "warp_stall"),
        _per_matmul(_fewer_threads),
    ),
    Move(
        "no split-K",
        "Use one thread block for each tile: no partial results to add, and the epilogue in the same kernel.",
        ("launch_overhead", "unfused_chain", "excess_traffic", "energy_dram_traffic", "energy_idle_clocks"),
        per_stage(_no_split_k),
    ),
)
