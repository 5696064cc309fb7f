"""Initial designs, moves and fallbacks for Triton."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.ir.expressions import nodes_of
from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.contractions import (
    find_contraction,
    is_matmul,
    reduces_rows_of_tile,
)
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.gpu_moves import (
    TileChange,
    deeper_tiles,
    larger_tiles,
    more_pipeline_stages,
    shrink_tile,
    smaller_tiles,
)
from kernelpro.authors.playbook.schedule.moves import (
    APPROXIMATE_MATH,
    DesignChange,
    Move,
    Seed,
    apply_change,
    distinct_fallbacks,
    distinct_seeds,
    more_exact_math,
    per_stage,
    use_fast_math,
)
from kernelpro.authors.playbook.schedule.passes import is_elementwise
from kernelpro.authors.playbook.triton.elementwise import broadcast_rows, find_transpose
from kernelpro.authors.playbook.triton.matmul import interleaved_phase, oriented_contraction, strided_side
from kernelpro.authors.playbook.triton.row_kernel import row_fits_registers

_SATURATING_PROGRAMS = 512
"""Programs that keep the largest GPUs busy: about four for each multiprocessor."""
_MIN_SPLIT_ELEMENTS = 1 << 20
"""Smaller stages are not worth a second kernel."""
_TILE_ELEMENTS = 4096
"""Elements that a program of 256 threads has in flight at once."""
_FEW_ROWS = 64
"""Up to this many rows of a product, such as output channels, fit into one narrow tile."""
_MIN_RESULTS = 64 * 64
"""Elements of the smallest tile of a matrix product."""

_VIA_REGISTERS = (
    "Copy an operand that is contiguous across the sum 16 bytes at a time, and pass it to the tensor cores "
    "through registers."
)

_WHOLE_ROWS = (
    "Keep all columns of a product in one tile and reduce them in registers, so that the product is never "
    "written to memory."
)


def seeds(program: Program) -> list[Seed]:
    """Initial designs, the most promising first."""
    best = Design("triton", tuple(_initial_design(stage) for stage in program.stages))
    with_rows = _seeds_with_whole_rows(program, best)
    if any(_is_convolution(stage) for stage in program.stages):
        return with_rows  # the form implicit_gemm has the designs that store all channels first
    interleaved = apply_change(program, best, _interleave_phases)
    registers = apply_change(program, best, _read_via_registers)
    plan = "Both phases of a transposed convolution with stride 2 in one tile, stored next to each other."
    return distinct_seeds(
        [
            *with_rows,
            *([Seed(plan, interleaved)] if interleaved else []),
            *([Seed(_VIA_REGISTERS, registers)] if registers else []),
            Seed(
                "One kernel per stage: rows in registers, 16-byte accesses, matrix products on tensor cores, "
                "tiles fit to the shape.",
                best,
            ),
            Seed(
                "The same with half the threads and smaller tiles, so that more programs run concurrently.",
                apply_change(program, best, _fewer_threads) or best,
            ),
            Seed(
                "Read rows in chunks instead of caching them, with more rows in flight.",
                apply_change(program, best, _reread_row) or best,
            ),
            Seed(
                "Give each thread rows of its own if they are short, and share rows between threads if not.",
                apply_change(program, best, _swap_order) or best,
            ),
        ]
    )


def _seeds_with_whole_rows(program: Program, design: Design) -> list[Seed]:
    """Designs for stages that reduce the rows of a product, if any does."""
    rows = apply_change(program, design, _whole_rows)
    if rows is None:
        return []
    interleaved = apply_change(program, rows, _interleave_phases)
    registers = apply_change(program, rows, _read_via_registers)
    plan = f"{_WHOLE_ROWS} Both phases of a transposed convolution with stride 2 are in one tile."
    return distinct_seeds(
        [
            *([Seed(plan, interleaved)] if interleaved else []),
            *([Seed(f"{_WHOLE_ROWS} {_VIA_REGISTERS}", registers)] if registers else []),
            Seed(_WHOLE_ROWS, rows),
            Seed(
                f"{_WHOLE_ROWS} Smaller tiles, so that more programs run concurrently.",
                apply_change(program, rows, _fewer_threads) or rows,
            ),
        ]
    )


def fallbacks(program: Program, design: Design) -> list[Design]:
    """Safer designs after a failure, the most similar first."""
    small_tiles = design.with_all_stages(
        pipeline_stages=2, tile_m=64, tile_n=64, tile_k=32, threads=128, coarsening=1, split=1
    )
    minimal = StageDesign(vector_width=4, threads=128, tile_m=32, tile_n=32, tile_k=32, pipeline_stages=1)
    stages = tuple(replace(minimal, order=stage_design.order) for stage_design in design.stages)
    return distinct_fallbacks(design, [more_exact_math(design), small_tiles, replace(design, stages=stages)])


# --- initial designs ------------------------------------------------------------------------------


def _initial_design(stage: Stage) -> StageDesign:
    if find_contraction(stage):
        return _matmul_design(stage)
    if is_elementwise(stage):
        return _elementwise_design(stage)
    if any(step.guards for step in stage.reductions):
        return StageDesign(order="strips", threads=256, vector_width=2)
    return _row_design(stage)


def _matmul_design(stage: Stage) -> StageDesign:
    """The largest tiles that leave enough programs to fill the device."""
    oriented = oriented_contraction(stage, StageDesign())
    assert oriented
    match = oriented[0]
    rows, columns, batch = iterations(match.rows), iterations(match.columns), iterations(match.batch)
    tile_m, tile_n, tile_k = (128, 128, 32) if match.left.dtype == "float32" else (128, 256, 64)
    if match.left.dtype == "float32" and rows <= _FEW_ROWS <= columns:
        # On an H200, this was the fastest of four tiles for most convolutions with up to 64 output channels.
        return StageDesign(
            order="tiles",
            cache_row=True,
            tile_m=64,
            tile_n=128,
            tile_k=32,
            threads=128,
            vector_width=8,
            pipeline_stages=4,
        )
    while (
        batch * -(-rows // tile_m) * -(-columns // tile_n) < _SATURATING_PROGRAMS // 4
        and max(tile_m, tile_n) > 64
    ):
        tile_m, tile_n = (tile_m, tile_n // 2) if tile_n >= tile_m else (tile_m // 2, tile_n)
    return StageDesign(
        order="tiles",
        cache_row=True,
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        threads=256 if tile_m * tile_n > 64 * 64 else 128,
        vector_width=8,
    )


def _elementwise_design(stage: Stage) -> StageDesign:
    if find_transpose(stage):
        return StageDesign(order="tiles", threads=256, coarsening=64)
    rows = broadcast_rows(stage)
    if not rows:
        return StageDesign(order="strips", threads=256, vector_width=8 if _element_bytes(stage) > 2 else 16)
    width = iterations((*stage.outer, *stage.steps[0].loops)[rows:])
    if width <= _TILE_ELEMENTS:
        coarsening = max(_TILE_ELEMENTS // 2 // power_of_two(width), 1)
        return StageDesign(cache_row=True, coarsening=coarsening, threads=256)
    return StageDesign(threads=256, vector_width=8, split=power_of_two(-(-width // 2048)))


def _row_design(stage: Stage) -> StageDesign:
    width, rows = stage.row_width, stage.rows
    padded = power_of_two(width)
    if _is_short_window(stage):
        return StageDesign(order="strips", threads=256, vector_width=2)
    if rows_are_contiguous(stage):
        coarsening = min(64, power_of_two(rows))
        if padded * coarsening <= _TILE_ELEMENTS * 4:
            return StageDesign(cache_row=True, coarsening=coarsening, threads=256)
        split = _split_count(-(-rows // coarsening), width, _TILE_ELEMENTS // coarsening)
        return StageDesign(coarsening=coarsening, threads=256, vector_width=16, split=split)
    if row_fits_registers(stage) and (rows >= _SATURATING_PROGRAMS // 4 or padded <= _TILE_ELEMENTS):
        coarsening = min(max(_TILE_ELEMENTS // 2 // padded, 1), max(power_of_two(rows) // 256, 1))
        threads = min(max(padded * coarsening // 16, 64), 1024)
        return StageDesign(cache_row=True, coarsening=coarsening, threads=threads)
    return StageDesign(threads=512, vector_width=8, split=_split_count(rows, width, _TILE_ELEMENTS))


def _split_count(rows: int, width: int, chunk: int) -> int:
    """The number of programs that share a row: enough to fill the device, with at least a chunk for each."""
    if rows >= _SATURATING_PROGRAMS // 2 or rows * width < _MIN_SPLIT_ELEMENTS:
        return 1
    return max(min(power_of_two(-(-_SATURATING_PROGRAMS // rows)), power_of_two(width // chunk), 64), 1)


def _is_short_window(stage: Stage) -> bool:
    """Whether rows have few elements, each used once: one row per thread is then faster."""
    if not stage.reductions or any(step.loops for step in stage.stores) or stage.row_width > 64:
        return False
    if nodes_of([step.value for step in stage.reductions], "row"):
        return False
    return rows_are_contiguous(stage) or stage.reductions[0].loops[-1].extent < 16


def rows_are_contiguous(stage: Stage) -> bool:
    """Whether most loads are contiguous across rows instead of along them."""
    across: list[bool] = []
    for step in stage.steps:
        for node in step.value.walk():
            if node.op == "load" and node.variables & set(step.loops) and stage.outer:
                index = node.data[1]
                along_row = any(index.coefficient(var) == 1 for var in step.loops)
                across.append(index.coefficient(stage.outer[-1]) == 1 and not along_row)
    return bool(across) and sum(across) * 2 > len(across)


def _element_bytes(stage: Stage) -> int:
    dtypes = {node.dtype for node in nodes_of([step.value for step in stage.steps], "load")}
    return 2 if dtypes and dtypes <= {"float16", "bfloat16"} else 4


# --- moves ----------------------------------------------------------------------------------------


def _per_matmul(change: TileChange) -> DesignChange:
    """A change that applies to stages written as matrix products."""
    return per_stage(lambda stage, design: _retiled(stage, design, change))


def _retiled(stage: Stage, design: StageDesign, change: TileChange) -> StageDesign | None:
    """The product's design after a change. If its tiles have whole rows, the change of a side that must not
    change applies to the other side instead."""
    changed = change(design) if is_matmul(stage, design) else None
    if changed is None or not design.whole_rows:
        return changed
    oriented = oriented_contraction(stage, design)
    assert oriented
    before, after = design.tile_m * design.tile_n, changed.tile_m * changed.tile_n
    if oriented[1]:  # the rows lie along the first axis
        return replace(changed, tile_m=design.tile_m, tile_n=max(design.tile_n * after // before, 16))
    return replace(changed, tile_n=design.tile_n, tile_m=max(design.tile_m * after // before, 16))


def _is_row_kernel(stage: Stage, design: StageDesign) -> bool:
    """Whether row_kernel.py writes the stage."""
    has_rows = not is_elementwise(stage) or broadcast_rows(stage) > 0
    return design.order == "rows" and not stage.product and has_rows


def _cache_row(stage: Stage, design: StageDesign) -> StageDesign | None:
    """Also adds threads if a whole row would not fit into the registers of the present ones."""
    if design.cache_row or not _is_row_kernel(stage, design) or is_elementwise(stage):
        return None
    if not row_fits_registers(stage):
        return None
    threads = min(max(design.threads, power_of_two(stage.row_width) * design.coarsening // 16), 1024)
    return replace(design, cache_row=True, split=1, threads=threads)


def _reread_row(stage: Stage, design: StageDesign) -> StageDesign | None:
    if not design.cache_row or not _is_row_kernel(stage, design) or is_elementwise(stage):
        return None
    return replace(design, cache_row=False, vector_width=8)


def _split_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    if not _is_row_kernel(stage, design) or stage.row_width < 2 * _TILE_ELEMENTS or design.split >= 64:
        return None
    vector = max(design.vector_width, 8)
    return replace(design, cache_row=False, split=2 * design.split, vector_width=vector)


def _more_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    rows = 2 * design.coarsening
    width = power_of_two(stage.row_width) if design.cache_row else 16
    if not _is_row_kernel(stage, design) or rows * width > 4 * _TILE_ELEMENTS or rows > stage.rows:
        return None
    return replace(design, coarsening=rows)


def _fewer_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    if not _is_row_kernel(stage, design) or design.coarsening == 1:
        return None
    return replace(design, coarsening=design.coarsening // 2)


def _more_elements(stage: Stage, design: StageDesign) -> StageDesign | None:
    streams = design.order == "strips" or (_is_row_kernel(stage, design) and not design.cache_row)
    if not streams or is_matmul(stage, design) or design.vector_width >= 16:
        return None
    return replace(design, vector_width=2 * design.vector_width)


def _more_threads(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.threads >= 1024 or is_matmul(stage, design):
        return None
    return replace(design, threads=2 * design.threads)


def _fewer_threads(stage: Stage, design: StageDesign) -> StageDesign | None:
    if is_matmul(stage, design):
        return _retiled(stage, design, lambda product: shrink_tile(product, _MIN_RESULTS))
    return replace(design, threads=design.threads // 2) if design.threads > 64 else None


def _swap_order(stage: Stage, design: StageDesign) -> StageDesign | None:
    """Switches between rows that threads share and one row per thread."""
    if is_elementwise(stage) or stage.rows == 1 or is_matmul(stage, design) or design.order == "tiles":
        return None
    if design.order == "rows":
        short = stage.row_width <= 64
        return replace(design, order="strips", vector_width=2, threads=256) if short else None
    width = power_of_two(stage.row_width)
    coarsening = max(_TILE_ELEMENTS // 2 // width, 1)
    cache_row = width <= _TILE_ELEMENTS
    return replace(
        design, order="rows", cache_row=cache_row, coarsening=coarsening, threads=256, vector_width=8
    )


def _transpose_tiles(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.order == "tiles" or stage.product or not is_elementwise(stage) or not find_transpose(stage):
        return None
    return replace(design, order="tiles", coarsening=64, threads=256)


def _read_via_registers(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.via_registers or not is_matmul(stage, design) or not strided_side(stage):
        return None
    new = replace(design, via_registers=True)
    before, after = (oriented_contraction(stage, each) for each in (design, new))
    assert before and after
    sides = (design.tile_m, design.tile_n) if before[1] == after[1] else (design.tile_n, design.tile_m)
    return replace(new, tile_m=sides[0], tile_n=sides[1])


def _interleave_phases(stage: Stage, design: StageDesign) -> StageDesign | None:
    """Half the columns, as a tile has two accumulators."""
    if design.interleave or not is_matmul(stage, design) or not interleaved_phase(stage, design):
        return None
    return replace(design, interleave=True, tile_n=max(design.tile_n // 2, 32))


def _whole_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    """All columns, and as many rows as registers can hold; fewer if programs would not fill the device."""
    if design.whole_rows or not reduces_rows_of_tile(stage):
        return None
    new = replace(design, whole_rows=True)
    oriented = oriented_contraction(stage, new)
    assert oriented and stage.product
    width = max(power_of_two(stage.product.column.extent), 16)
    fills_device = stage.rows // 128 >= _SATURATING_PROGRAMS // 4
    rows = 128 if width <= 128 and fills_device else 64  # warpgroup instructions need 64
    sides = (width, rows) if oriented[1] else (rows, width)
    threads = 256 if width * rows > 64 * 128 else 128
    return replace(new, tile_m=sides[0], tile_n=sides[1], threads=threads)


def _is_convolution(stage: Stage) -> bool:
    """Whether the stage has a convolution as a product."""
    return stage.product is not None and (len(stage.product.depth) > 1 or bool(stage.product.guards))


def _use_tensor_cores(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.order == "tiles" or not find_contraction(stage):
        return None
    return replace(design, order="tiles", threads=256)


MOVES = (
    Move(
        "tensor cores",
        "Compute the sum as a matrix product in tiles on tensor cores.",
        ("tensor_cores_idle", "missing_reuse", "energy_wide_precision"),
        per_stage(_use_tensor_cores),
    ),
    Move(
        "whole rows",
        _WHOLE_ROWS,
        ("excess_traffic", "l2_thrash", "energy_dram_traffic", "energy_l2_traffic"),
        per_stage(_whole_rows),
    ),
    Move(
        "operands via registers",
        _VIA_REGISTERS,
        ("narrow_access", "missing_async_copy", "bank_conflicts"),
        per_stage(_read_via_registers),
    ),
    Move(
        "interleave phases",
        "Compute both phases of a transposed convolution in one tile and store them next to each other.",
        ("uncoalesced_access", "sector_waste"),
        per_stage(_interleave_phases),
    ),
    Move(
        "cache rows",
        "Keep the whole row in registers, so that it is read only once.",
        ("excess_traffic", "l2_thrash", "energy_dram_traffic", "energy_l2_traffic"),
        per_stage(_cache_row),
    ),
    Move(
        "split rows",
        "Let several programs share a row and combine their partial results in a second kernel: "
        "the rows do not fill the device.",
        ("low_parallelism", "tail_effect"),
        per_stage(_split_rows),
    ),
    Move(
        "transpose tiles",
        "Process square tiles, so that both loads and stores are coalesced.",
        ("uncoalesced_access", "sector_waste"),
        per_stage(_transpose_tiles),
    ),
    larger_tiles(_per_matmul),
    more_pipeline_stages(_per_matmul),
    smaller_tiles(_per_matmul, _MIN_RESULTS),
    deeper_tiles(_per_matmul, 128, ("barrier_stall", "serialized_wgmma")),
    Move(
        "more elements per thread",
        "Give each thread twice as many elements: more bytes in flight, fewer address computations.",
        ("narrow_access", "warp_stall", "integer_arithmetic", "dram_roof", "energy_excess_threads"),
        per_stage(_more_elements),
    ),
    Move(
        "more rows",
        "Give each program twice as many rows: fewer reads of values that rows share, more loads in flight.",
        ("warp_stall", "barrier_stall", "narrow_access"),
        per_stage(_more_rows),
    ),
    Move(
        "more threads",
        "Use twice as many threads: fewer registers per thread, and more loads in flight.",
        ("spills", "register_pressure", "warp_stall"),
        per_stage(_more_threads),
    ),
    Move(
        "fewer threads",
        "Use half as many threads: fewer wait at barriers, and more programs fit on a multiprocessor.",
        ("barrier_stall", "occupancy_limiter", "tail_effect"),
        per_stage(_fewer_threads),
    ),
    Move(
        "read rows again",
        "Read the row in chunks, once per pass: more memory traffic, fewer registers.",
        ("spills", "register_pressure", "occupancy_limiter"),
        per_stage(_reread_row),
    ),
    Move(
        "fewer rows",
        "Give each program half as many rows: more programs.",
        ("low_parallelism", "tail_effect"),
        per_stage(_fewer_rows),
    ),
    Move(
        "swap thread order",
        "Give each thread rows of its own instead of sharing rows between threads, or the other way round.",
        ("uncoalesced_access", "sector_waste", "barrier_stall"),
        per_stage(_swap_order),
    ),
    APPROXIMATE_MATH,
    Move(
        "fast math",
        "Use hardware instructions for exponential, logarithm and reciprocal.",
        ("special_functions", "warp_stall", "energy_costly_math"),
        use_fast_math(frozenset({"exp", "log", "div", "tanh"})),
    ),
)
