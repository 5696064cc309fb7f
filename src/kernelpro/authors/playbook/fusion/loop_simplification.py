"""Simplifies the loops of a stage: few and long loops, enough rows to run in parallel, few divisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, Loops, LoopVar, Quotient, Remainder, variable
from kernelpro.authors.playbook.ir.stages import Guard, Stage, StageStep, StoreStep

_FEW_ROWS = 64
"""With fewer rows, a long loop is split into rows."""
_ROW_WIDTHS = range(4096, 255, -1)
"""Row lengths to split a long loop into, the best first."""


def simplify_loops(stage: Stage, builder: ExprBuilder) -> Stage:
    """An equivalent stage with simpler loops."""
    product = stage.product
    stage = _merge_loops(stage, builder, stage.outer[len(product.batch) :] if product else stage.outer)
    stage = _merge_loops(stage, builder, product.depth) if product else stage
    for loops in {step.loops: None for step in stage.steps}:
        if any(step.loops == loops for step in stage.steps):  # an earlier merge may have replaced them
            stage = _merge_loops(stage, builder, loops)
    stage = _split_into_rows(_merge_rows(stage, builder), builder)
    stage = _hoist_reciprocals(stage, builder)
    return replace(
        stage,
        outer=stage.outer if stage.product else _without_unit_loops(stage.outer),
        steps=tuple(replace(step, loops=_without_unit_loops(step.loops)) for step in stage.steps),
    )


def _hoist_reciprocals(stage: Stage, builder: ExprBuilder) -> Stage:
    """Replace division by a value that is constant along the row with multiplication by its reciprocal."""
    memo: dict[Expr, Expr] = {}

    def rewrite(step: StageStep) -> StageStep:
        inner = set(step.loops)

        def replace_division(node: Expr) -> Expr:
            if node.op != "div" or not node.args[0].variables & inner or node.args[1].variables & inner:
                return node
            reciprocal = builder.make("div", builder.const(1.0, node.dtype), node.args[1])
            return builder.make("mul", node.args[0], reciprocal)

        return replace(step, value=builder.rewrite(step.value, replace_division, memo))

    return replace(stage, steps=tuple(rewrite(step) for step in stage.steps))


def _without_unit_loops(loops: Loops) -> Loops:
    return tuple(var for var in loops if var.extent > 1)


def _merge_loops(stage: Stage, builder: ExprBuilder, loops: Loops) -> Stage:
    """Merge neighbouring loops where that does not add divisions to the indices."""
    for position in range(len(loops) - 2, -1, -1):
        merged, joint = _merge_pair(stage, builder, loops[position], loops[position + 1])
        if _division_count(merged) <= _division_count(stage):
            stage = merged
            loops = (*loops[:position], joint, *loops[position + 2 :])
    return stage


def _merge_pair(stage: Stage, builder: ExprBuilder, outer: LoopVar, inner: LoopVar) -> tuple[Stage, LoopVar]:
    joint = LoopVar(outer.name + inner.name.removeprefix("o"), outer.extent * inner.extent)
    replacements = {outer: variable(joint) // inner.extent, inner: variable(joint) % inner.extent}
    return _substitute(stage, builder, replacements, {outer: None, inner: joint}), joint


def _merge_rows(stage: Stage, builder: ExprBuilder) -> Stage:
    """Merge the rows of a stage that only stores into one long loop, if that can be split into better
    rows."""
    if not stage.outer or not _stores_along_one_loop(stage):
        return stage
    if not _row_width(stage.rows * stage.steps[0].loops[0].extent):
        return stage
    merged = stage
    while merged.outer and merged.steps[0].loops[0].extent < max(_ROW_WIDTHS):
        candidate, _ = _merge_pair(merged, builder, merged.outer[-1], merged.steps[0].loops[0])
        if _division_count(candidate) > _division_count(merged):
            return stage
        merged = candidate
    return merged


def _stores_along_one_loop(stage: Stage) -> bool:
    """Whether the stage only stores, in one loop that all steps share, without scans."""
    if stage.totals or stage.product or stage.reductions or len({step.loops for step in stage.steps}) != 1:
        return False
    return len(stage.steps[0].loops) == 1 and not nodes_of([step.value for step in stage.steps], "scan")


def _row_width(extent: int) -> int:
    """The longest of _ROW_WIDTHS that divides the extent of a long loop; 0 if there is none."""
    return next((width for width in _ROW_WIDTHS if extent % width == 0 and extent > width), 0)


def _split_into_rows(stage: Stage, builder: ExprBuilder) -> Stage:
    """Split the long loop of a stage that only stores and has few rows, so that more rows run in parallel."""
    if stage.rows >= _FEW_ROWS or not _stores_along_one_loop(stage):
        return stage
    (var,) = stage.steps[0].loops
    width = _row_width(var.extent)
    if not width:
        return stage
    outer, inner = LoopVar(f"{var.name}_row", var.extent // width), LoopVar(f"{var.name}_in", width)
    split = _substitute(stage, builder, {var: variable(outer) * width + variable(inner)}, {var: inner})
    return replace(split, outer=(*split.outer, outer))


def _substitute(
    stage: Stage,
    builder: ExprBuilder,
    replacements: Mapping[LoopVar, IndexExpr],
    loops: Mapping[LoopVar, LoopVar | None],
) -> Stage:
    """The stage with loop variables replaced in all indices and loops; a loop mapped to None is removed."""

    def expr(value: Expr) -> Expr:
        return builder.substitute(value, replacements)

    def index(value: IndexExpr) -> IndexExpr:
        return value.substitute(replacements, expr)

    def new_loops(old: Loops) -> Loops:
        return tuple(new for var in old if (new := loops.get(var, var)) is not None)

    def step(old: StageStep) -> StageStep:
        value, own_loops = expr(old.value), new_loops(old.loops)
        guards = tuple(Guard(index(guard.index), guard.size) for guard in old.guards)
        if isinstance(old, StoreStep):
            return replace(old, index=index(old.index), value=value, loops=own_loops, guards=guards)
        return replace(old, value=value, loops=own_loops, guards=guards)

    product = stage.product
    return replace(
        stage,
        outer=new_loops(stage.outer),
        steps=tuple(step(old) for old in stage.steps),
        totals=tuple(replace(total, value=expr(total.value)) for total in stage.totals),
        product=replace(
            product,
            left=expr(product.left),
            right=expr(product.right),
            depth=new_loops(product.depth),
            guards=tuple(Guard(index(guard.index), guard.size) for guard in product.guards),
        )
        if product
        else None,
    )


def _division_count(stage: Stage) -> int:
    """How many quotients and remainders the indices of the stage contain."""
    return sum(1 for index in _indices(stage) for _ in _divisions(index))


def _indices(stage: Stage) -> Iterator[IndexExpr]:
    for node in nodes_of(stage.expressions, "load", "product", "index"):
        assert node.index is not None
        yield node.index
    for step in (*stage.steps, *((stage.product,) if stage.product else ())):
        if isinstance(step, StoreStep):
            yield step.index
        yield from (guard.index for guard in step.guards)


def _divisions(index: IndexExpr) -> Iterator[Quotient | Remainder]:
    for atom, _ in index.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield atom
            yield from _divisions(atom.dividend)
