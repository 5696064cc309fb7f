"""Designs for C++ on the CPU: seeds, moves, and the diagnostics that suggest them."""

from __future__ import annotations

from dataclasses import replace

from kernelpro.authors.playbook.cpp.contraction import packable
from kernelpro.authors.playbook.cpp.strips import STRIPS
from kernelpro.authors.playbook.cpp.syntax import FAST_FUNCTIONS
from kernelpro.authors.playbook.ir.expressions import nodes_of
from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.contractions import Contraction
from kernelpro.authors.playbook.schedule.design import Design, StageDesign, power_of_two
from kernelpro.authors.playbook.schedule.moves import (
    Move,
    Seed,
    apply_change,
    distinct_fallbacks,
    distinct_seeds,
    per_stage,
    use_fast_math,
)
from kernelpro.authors.playbook.schedule.online_reductions import fuse_variance
from kernelpro.authors.playbook.schedule.passes import choose_cached, split_into_passes

LANES = 16
_CHANNELS = 8
"""Input channels of a convolution that are packed at a time, at least."""
_PACKED_ELEMENTS = 1 << 16
"""Elements of a convolution's input that are packed at a time."""
_MIN_PACKED_ROWS = 16
"""With fewer rows, packing the right operand of a product does not pay off."""


def simplest_design(program: Program) -> Design:
    """Rows in parallel on all cores, scalar loops, libm's functions; windows in strips."""
    design = Design("cpp", (StageDesign(),) * len(program.stages))
    return apply_change(program, design, _windows_in_strips) or design


def seeds(program: Program) -> list[Seed]:
    """Designs to start from, the simplest first. It comes last around library calls, which are fast already,
    and with products or convolutions, for which its plain loops take many times as long."""
    simplest = simplest_design(program)
    vectorized = replace(simplest, math="fast").with_all_stages(lanes=LANES)
    for change in (_pack, _use_strips, _use_tiles):
        vectorized = apply_change(program, vectorized, change) or vectorized
    cached = apply_change(program, vectorized, _cache_row) or vectorized
    packs = any(stage.packed for stage in vectorized.stages)
    first = Seed(
        "All operators in one pass over each row, rows shared between the cores, scalar loops.",
        simplest,
        is_last_resort=packs,
    )
    others = [
        Seed("The same with vector loops, partial results in lanes, and vectorized functions.", vectorized),
        Seed("Vector loops; values that several passes compute are kept in a row buffer.", cached),
    ]
    if packs:
        plan = "Products and convolutions in blocks with packed operands; vector loops around them."
        others[0] = replace(others[0], plan=plan)
    return distinct_seeds([*others, first] if packs or program.library_calls else [first, *others])


def fallbacks(program: Program, design: Design) -> list[Design]:
    """Simpler designs, the most similar first."""
    scalar = design.with_all_stages(cache_row=False, online=False, prefetch=False, lanes=1, packed=False)
    two_passes = design.with_all_stages(online=False)
    steps = [two_passes, replace(design, math="library"), scalar, simplest_design(program)]
    return distinct_fallbacks(design, steps)


# --- conditions --------------------------------------------------------------------------------------------


def _has_guards(stage: Stage) -> bool:
    return any(reduction.guards for reduction in stage.reductions)


def _has_scans(stage: Stage) -> bool:
    return bool(nodes_of([step.value for step in stage.steps], "scan"))


def _reads_across_rows(stage: Stage) -> bool:
    """Whether most loads are contiguous across rows instead of along them."""
    if not stage.outer or stage.product or not (stage.reductions or _has_scans(stage)):
        return False
    last, along, across = stage.outer[-1], 0, 0
    for step in stage.steps:
        for node in nodes_of([step.value], "load") if step.loops else ():
            inner, index = step.loops[-1], node.data[1]
            if index.is_affine and inner in node.variables:
                along += abs(index.coefficient(inner)) == 1
                across += abs(index.coefficient(inner)) > 1 and abs(index.coefficient(last)) == 1
    return across > along


# --- moves -------------------------------------------------------------------------------------------------


def _vectorize(stage: Stage, design: StageDesign) -> StageDesign | None:
    return replace(design, lanes=LANES) if design.lanes == 1 and design.order == "rows" else None


def _more_lanes(stage: Stage, design: StageDesign) -> StageDesign | None:
    suits = 1 < design.lanes < 64 and stage.reductions and design.order == "rows"
    return replace(design, lanes=2 * design.lanes) if suits else None


def _pack(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.packed:
        return None
    if contraction := packable(stage):
        return _in_blocks(contraction, design)
    suits = stage.product and stage.outer[-1].extent >= _MIN_PACKED_ROWS
    return replace(design, packed=True) if suits else None


def _in_blocks(contraction: Contraction, design: StageDesign) -> StageDesign:
    """Blocks with so many terms that each tap of a window is read from several channels in turn, and with so
    many positions that the packed operand stays in the L2 cache."""
    first, *taps = contraction.depth
    terms = power_of_two(min(first.extent, _CHANNELS) * iterations(taps))
    block_k = min(max(terms, 256), 1024)
    return replace(design, packed=True, block_m=_PACKED_ELEMENTS // block_k, block_k=block_k)


def _in_strips(stage: Stage, design: StageDesign) -> StageDesign:
    """Strips of 256 rows, or fewer if there are fewer."""
    strip = next((width for width in STRIPS if width >= min(stage.outer[-1].extent, 256)), 256)
    return replace(design, order="strips", strip=strip)


def _use_strips(stage: Stage, design: StageDesign) -> StageDesign | None:
    return _in_strips(stage, design) if design.order == "rows" and _reads_across_rows(stage) else None


def _windows_in_strips(stage: Stage, design: StageDesign) -> StageDesign | None:
    """Vectorizes over neighbouring windows: loops within a window are short and skip elements at the
    edges."""
    return _in_strips(stage, design) if stage.outer and _has_guards(stage) else None


def _use_rows(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.order != "strips" or _has_guards(stage) or _reads_across_rows(stage):
        return None
    return replace(design, order="rows", lanes=max(design.lanes, LANES))


def _use_tiles(stage: Stage, design: StageDesign) -> StageDesign | None:
    """For stages that only store, and that load contiguously across rows."""
    if design.order != "rows" or not stage.outer or stage.totals or stage.product:
        return None
    if stage.reductions or _has_scans(stage) or not all(step.loops for step in stage.steps):
        return None
    last = stage.outer[-1]
    for step in stage.steps:
        for node in nodes_of([step.value], "load"):
            if node.data[1].coefficient(last) == 1 and node.data[1].coefficient(step.loops[-1]) > 1:
                return replace(design, order="tiles")
    return None


def _prefetch(stage: Stage, design: StageDesign) -> StageDesign | None:
    reads_rows = stage.outer and any(reduction.loops for reduction in stage.reductions) and not stage.product
    suits = reads_rows and design.order == "rows" and design.lanes > 1 and not design.prefetch
    return replace(design, prefetch=True) if suits else None


def _online_variance(stage: Stage, design: StageDesign) -> StageDesign | None:
    """Turns caching off: with one pass less there is little to cache, and writing the cache slows the other
    passes."""
    suits = design.order == "rows" and design.lanes > 1 and not design.online and not stage.product
    if not suits or not fuse_variance(split_into_passes(stage))[1]:
        return None
    return replace(design, online=True, cache_row=False)


def _cache_row(stage: Stage, design: StageDesign) -> StageDesign | None:
    if design.cache_row or design.order != "rows":
        return None
    passes = split_into_passes(stage)
    choose_cached(passes)
    return replace(design, cache_row=True) if any(row_pass.cached for row_pass in passes) else None


def _recompute(stage: Stage, design: StageDesign) -> StageDesign | None:
    return replace(design, cache_row=False) if design.cache_row else None


def _dynamic_schedule(stage: Stage, design: StageDesign) -> StageDesign | None:
    return replace(design, schedule="dynamic") if design.schedule == "static" and design.parallel else None


def _parallelize(stage: Stage, design: StageDesign) -> StageDesign | None:
    return None if design.parallel else replace(design, parallel=True)


MOVES = (
    Move(
        "vectorize",
        "Process a vector of elements at a time, with independent partial results in lanes instead of one "
        "chain of additions.",
        ("cpu_scalar_code", "cpu_dependency_chain", "cpu_double_precision"),
        per_stage(_vectorize),
    ),
    Move(
        "pack",
        "Pack both operands of the product and keep tiles of results in registers.",
        ("cpu_scalar_code", "cpu_strided_access", "cpu_dependency_chain", "cpu_excess_traffic"),
        per_stage(_pack),
    ),
    Move(
        "fast math",
        "Replace calls of libm with polynomials that vectorize.",
        ("cpu_math_calls", "cpu_scalar_code"),
        use_fast_math(frozenset(FAST_FUNCTIONS)),
    ),
    Move(
        "strips",
        "Interchange the loops: process strips of neighbouring rows, so that memory is read contiguously.",
        ("cpu_strided_access", "cpu_scalar_code"),
        per_stage(_use_strips),
    ),
    Move(
        "tiles",
        "Process square tiles, so that cache lines across rows are used completely while cached.",
        ("cpu_strided_access", "cpu_scalar_code"),
        per_stage(_use_tiles),
    ),
    Move(
        "online variance",
        "Sum values and their squares in one pass, shifted by an estimate of the mean: one pass less.",
        ("cpu_repeated_passes", "cpu_dependency_chain"),
        per_stage(_online_variance),
    ),
    Move(
        "prefetch",
        "Prefetch the next row during the last pass over this one, so that memory is not idle.",
        ("cpu_repeated_passes",),
        per_stage(_prefetch),
    ),
    Move(
        "parallelize",
        "Share the rows between all cores.",
        ("cpu_single_thread",),
        per_stage(_parallelize),
    ),
    Move(
        "cache rows",
        "Keep values that several passes over a row compute in a buffer that stays in the L1 cache.",
        ("cpu_repeated_passes", "cpu_divisions"),
        per_stage(_cache_row),
    ),
    Move(
        "dynamic schedule",
        "Assign rows to cores as they become free.",
        ("cpu_imbalance",),
        per_stage(_dynamic_schedule),
    ),
    Move(
        "more lanes",
        "Use twice as many independent partial results, so that operations do not wait for each other.",
        ("cpu_dependency_chain",),
        per_stage(_more_lanes),
    ),
    Move(
        "recompute",
        "Compute values again instead of caching them: arithmetic may be cheaper than the cache.",
        (),
        per_stage(_recompute),
    ),
    Move(
        "rows",
        "Process rows one by one instead of in strips.",
        (),
        per_stage(_use_rows),
    ),
)
