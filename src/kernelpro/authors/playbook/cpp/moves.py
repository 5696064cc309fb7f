"""Designs for C++ on the CPU: where to begin, and which move answers which finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelpro.authors.playbook.cpp.loops import STRIPS
from kernelpro.authors.playbook.cpp.syntax import FAST_FUNCTIONS
from kernelpro.authors.playbook.ir.stages import Program, Stage
from kernelpro.authors.playbook.schedule.design import Design, StageDesign
from kernelpro.authors.playbook.schedule.moves import (Move, Seed, apply_change, distinct_fallbacks, distinct_seeds, per_stage, use_fast_math)
from kernelpro.authors.playbook.schedule.online_reductions import fuse_variance
from kernelpro.authors.playbook.schedule.passes import choose_cached, split_into_passes

LANES = 16
_FEW = 16
"""Rows for which packing the other operand of a product does not pay."""


def plain(program: Program) -> Design:
    """Rows side by side on all cores, each from left to right, mathematics from the library."""
    usual = Design("cpp", (StageDesign(),) * len(program.stages))
    return apply_change(program, usual, _windows) or usual


def seeds(program: Program) -> list[Seed]:
    first = plain(program)
    vector = replace(first, math="fast").with_all_stages(lanes=LANES)
    vector = apply_change(program, vector, _pack) or vector
    ordered = apply_change(program, vector, _strips) or vector
    ordered = apply_change(program, ordered, _tiles) or ordered
    found = [
        Seed("All operators in one pass over each row, rows spread over the cores, plain loops.", first),
        Seed("The same with vector loops, partial results in lanes, and vectorised mathematics.", ordered),
        Seed(
            "Vector loops; what several passes compute is kept in a row buffer.",
            apply_change(program, ordered, _keep) or ordered,
        ),
    ]
    return distinct_seeds(found)


def fallbacks(program: Program, design: Design) -> list[Design]:
    simple = design.with_all_stages(cache_row=False, online=False, prefetch=False, lanes=1, packed=False)
    steps = [design.with_all_stages(online=False), replace(design, math="library"), simple, plain(program)]
    return distinct_fallbacks(design, steps)


# --- moves -------------------------------------------------------------------------------------------------


def _vectorise(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, lanes=LANES) if how.lanes == 1 and how.order == "rows" else None


def _more_lanes(stage: Stage, how: StageDesign) -> StageDesign | None:
    return (
        replace(how, lanes=2 * how.lanes)
        if 1 < how.lanes < 64 and stage.reductions and how.order == "rows"
        else None
    )


def _pack(stage: Stage, how: StageDesign) -> StageDesign | None:
    """Worth it where the packed operand is used by rows enough."""
    return (
        replace(how, packed=True)
        if stage.product and not how.packed and stage.outer[-1].extent >= _FEW
        else None
    )


def _strips(stage: Stage, how: StageDesign) -> StageDesign | None:
    """Where neighbours along the row lie apart in memory, and neighbouring rows side by side."""
    return (
        replace(how, order="strips", strip=_strip(stage)) if how.order == "rows" and _across(stage) else None
    )


def _windows(stage: Stage, how: StageDesign) -> StageDesign | None:
    """Windows have short loops, and at edges leave elements out: vector loops go along their neighbours."""
    guarded = stage.outer and any(reduce.guards for reduce in stage.reductions)
    return replace(how, order="strips", strip=_strip(stage)) if guarded else None


def _strip(stage: Stage) -> int:
    """256 rows, or as many as there are."""
    return next((width for width in STRIPS if width >= min(stage.outer[-1].extent, 256)), 256)


def _across(stage: Stage) -> bool:
    if not stage.outer or stage.product or not stage.reductions + _scanning(stage):
        return False
    last, along, across = stage.outer[-1], 0, 0
    for step in stage.steps:
        inner = step.loops[-1] if step.loops else None
        for node in step.value.walk():
            if inner and node.op == "load" and node.data[1].is_affine and inner in node.variables:
                along += abs(node.data[1].coefficient(inner)) == 1
                across += (
                    abs(node.data[1].coefficient(inner)) > 1 and abs(node.data[1].coefficient(last)) == 1
                )
    return across > along


def _scanning(stage: Stage) -> tuple[Any, ...]:
    return tuple(step for step in stage.steps if any(node.op == "scan" for node in step.value.walk()))


def _tiles(stage: Stage, how: StageDesign) -> StageDesign | None:
    """Stores alone, of what lies across the rows."""
    if how.order != "rows" or not stage.outer or stage.totals or not _only_stores(stage):
        return None
    last = stage.outer[-1]
    for step in stage.steps:
        inner = step.loops[-1]
        for node in step.value.walk():
            if (
                node.op == "load"
                and node.data[1].coefficient(last) == 1
                and node.data[1].coefficient(inner) > 1
            ):
                return replace(how, order="tiles")
    return None


def _only_stores(stage: Stage) -> bool:
    return not (stage.product or stage.reductions or _scanning(stage)) and all(
        step.loops for step in stage.steps
    )


def _ahead(stage: Stage, how: StageDesign) -> StageDesign | None:
    reads_rows = stage.outer and any(reduce.loops for reduce in stage.reductions) and not stage.product
    return (
        replace(how, prefetch=True)
        if reads_rows and how.order == "rows" and how.lanes > 1 and not how.prefetch
        else None
    )


def _join(stage: Stage, how: StageDesign) -> StageDesign | None:
    """With one pass less there is little left to keep, and writing it down slows the pass that is left."""
    suits = how.order == "rows" and how.lanes > 1 and not how.online and not stage.product
    return (
        replace(how, online=True, cache_row=False)
        if suits and fuse_variance(split_into_passes(stage))[1]
        else None
    )


def _rows(stage: Stage, how: StageDesign) -> StageDesign | None:
    if how.order != "strips" or _windows(stage, how) or _across(stage):
        return None
    return replace(how, order="rows", lanes=max(how.lanes, LANES))


def _keep(stage: Stage, how: StageDesign) -> StageDesign | None:
    if how.cache_row or how.order != "rows":
        return None
    made = split_into_passes(stage)
    choose_cached(made)
    return replace(how, cache_row=True) if any(one.cached for one in made) else None


def _recompute(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, cache_row=False) if how.cache_row else None


def _balance(stage: Stage, how: StageDesign) -> StageDesign | None:
    return replace(how, schedule="dynamic") if how.schedule == "static" and how.parallel else None


def _spread(stage: Stage, how: StageDesign) -> StageDesign | None:
    return None if how.parallel else replace(how, parallel=True)


MOVES = (
    Move(
        "vectorise",
        "Work on a vector of elements at a time, with independent partial results in lanes instead of one chain of additions.",
        ("cpu_scalar_code", "cpu_dependency_chain", "cpu_double_precision"),
        per_stage(_vectorise),
    ),
    Move(
        "pack",
        "Pack both operands of the product and keep tiles of results in registers.",
        ("cpu_scalar_code", "cpu_strided_access", "cpu_dependency_chain", "cpu_excess_traffic"),
        per_stage(_pack),
    ),
    Move(
        "own mathematics",
        "Replace calls into libm by polynomials that vectorise.",
        ("cpu_math_calls", "cpu_scalar_code"),
        use_fast_math(frozenset(FAST_FUNCTIONS)),
    ),
    Move(
        "strips",
        "Swap the loops: neighbouring rows side by side in strips, so that memory is read along its lines.",
        ("cpu_strided_access", "cpu_scalar_code"),
        per_stage(_strips),
    ),
    Move(
        "tiles",
        "Work in tiles, so that lines of memory that go across the rows are used up while they are in cache.",
        ("cpu_strided_access", "cpu_scalar_code"),
        per_stage(_tiles),
    ),
    Move(
        "join",
        "Sum up values and their squares in one pass, about a number near the mean: one pass over the row less.",
        ("cpu_repeated_passes", "cpu_dependency_chain"),
        per_stage(_join),
    ),
    Move(
        "fetch ahead",
        "Fetch the next row while this one is gone over for the last time, so that memory does not rest.",
        ("cpu_repeated_passes",),
        per_stage(_ahead),
    ),
    Move(
        "spread over cores",
        "Share the rows between all cores.",
        ("cpu_single_thread",),
        per_stage(_spread),
    ),
    Move(
        "keep",
        "Keep what several passes over a row compute in a buffer that stays in the first-level cache.",
        ("cpu_repeated_passes", "cpu_divisions"),
        per_stage(_keep),
    ),
    Move(
        "balance",
        "Hand out rows as cores become free.",
        ("cpu_imbalance",),
        per_stage(_balance),
    ),
    Move(
        "more lanes",
        "Twice as many independent partial results, so that an operation need not wait for the one before it.",
        ("cpu_dependency_chain",),
        per_stage(_more_lanes),
    ),
    Move(
        "recompute",
        "Compute again what a buffer kept: arithmetic may be cheaper than the trip through the cache.",
        (),
        per_stage(_recompute),
    ),
    Move(
        "rows",
        "Row by row in place of strips.",
        (),
        per_stage(_rows),
    ),
)
