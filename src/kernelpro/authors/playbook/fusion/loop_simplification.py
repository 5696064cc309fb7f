"""Settling a draft: one loop of two wherever nothing tells them apart, rows out of one long loop, fewer divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from kernelpro.authors.playbook.fusion.stage_builder import Loops, StageBuilder
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, Quotient, Remainder, variable
from kernelpro.authors.playbook.ir.stages import Guard, MatrixProduct, ReduceStep, Stage, StoreStep

_FEW_ROWS = 64
_WIDTHS = range(4096, 255, -1)


def simplify_loops(draft: StageBuilder) -> Stage:
    """The draft as a stage with as few and as long loops as can be."""
    stage = Stage(draft.outer, tuple(draft.steps), tuple(draft.totals), tuple(draft.epilogue), draft.product)
    stage = _merge_loops(stage, draft.builder, lambda s: s.outer if s.product is None else ())
    for loops in {step.loops: None for step in stage.steps}:
        stage = _merge_loops(stage, draft.builder, partial(_current_loops, like=loops))
    stage = _split_into_rows(_merge_rows(stage, draft.builder), draft.builder)
    stage = _hoist_reciprocals(stage, draft.builder)
    return replace(
        stage,
        outer=_drop_unit_loops(stage.outer, bool(stage.product)),
        steps=tuple(_trimmed(step) for step in stage.steps),
    )


def _hoist_reciprocals(stage: Stage, builder: ExprBuilder) -> Stage:
    """A division by what does not change within the row becomes a multiplication by its inverse."""
    made: dict[Expr, Expr] = {}

    def expr(root: Expr, inner: set[LoopVar]) -> Expr:
        for node in root.walk():
            if node in made:
                continue
            args = [made[arg] for arg in node.args]
            if node.op == "div" and node.args[0].variables & inner and not node.args[1].variables & inner:
                made[node] = builder.make(
                    "mul", args[0], builder.make("div", builder.const(1.0, node.dtype), args[1])
                )
            elif args and tuple(args) != node.args:
                made[node] = builder.make(node.op, *args, dtype=node.dtype, data=node.data)
            else:
                made[node] = node
        return made[root]

    return replace(
        stage, steps=tuple(replace(step, value=expr(step.value, set(step.loops))) for step in stage.steps)
    )


def _drop_unit_loops(loops: Loops, product: bool = False) -> Loops:
    """Without loops that run once."""
    return loops if product else tuple(var for var in loops if var.extent > 1)


def _trimmed(step: ReduceStep | StoreStep) -> ReduceStep | StoreStep:
    return replace(step, loops=_drop_unit_loops(step.loops))


def _current_loops(stage: Stage, like: Loops) -> Loops:
    """The loops of that name as the stage has them now: merging may have renamed the rest of it, never these."""
    return like if any(step.loops == like for step in stage.steps) else ()


def _merge_loops(stage: Stage, builder: ExprBuilder, loops_of: Callable[[Stage], Loops]) -> Stage:
    loops = loops_of(stage)
    at = len(loops) - 2
    while at >= 0:
        first, second = loops[at], loops[at + 1]
        joint = LoopVar(first.name + second.name.removeprefix("o"), first.extent * second.extent)
        new = {first: variable(joint) // second.extent, second: variable(joint) % second.extent}
        tried = _substitute(stage, builder, new, {first: None, second: joint})
        if _division_count(tried) <= _division_count(stage):
            stage = tried
            loops = (*loops[:at], joint, *loops[at + 2 :])
        at -= 1
    return stage


def _merge_rows(stage: Stage, builder: ExprBuilder) -> Stage:
    """Stores through which rows run on into each other: one long loop, where it can be cut into rows of a better length."""
    if not stage.outer or not _only_stores(stage) or not _width(stage.rows * stage.steps[0].loops[0].extent):
        return stage
    tried = stage
    while tried.outer and tried.steps[0].loops[0].extent < max(_WIDTHS):
        first, second = tried.outer[-1], tried.steps[0].loops[0]
        joint = LoopVar(first.name + second.name, first.extent * second.extent)
        new = {first: variable(joint) // second.extent, second: variable(joint) % second.extent}
        merged = _substitute(tried, builder, new, {first: None, second: joint})
        if _division_count(merged) > _division_count(tried):
            return stage
        tried = merged
    return tried


def _only_stores(stage: Stage) -> bool:
    """Along the same single loop, nothing running."""
    same = len({step.loops for step in stage.steps}) == 1 and len(stage.steps[0].loops) == 1
    plain = all(
        isinstance(s, StoreStep) and not any(n.op == "scan" for n in s.value.walk()) for s in stage.steps
    )
    return same and plain and not stage.totals and not stage.product


def _width(extent: int) -> int:
    """A good length for rows that one long loop is cut into; 0 where none divides it."""
    return next((width for width in _WIDTHS if extent % width == 0 and extent > width), 0)


def _split_into_rows(stage: Stage, builder: ExprBuilder) -> Stage:
    """Stores along one long loop with hardly any rows: the loop is cut into rows, which can be worked on side by side."""
    if stage.rows >= _FEW_ROWS or not _only_stores(stage):
        return stage
    (var,) = stage.steps[0].loops
    width = _width(var.extent)
    if not width:
        return stage
    outer, inner = LoopVar(f"{var.name}_row", var.extent // width), LoopVar(f"{var.name}_in", width)
    new = {var: variable(outer) * width + variable(inner)}
    cut = _substitute(stage, builder, new, {var: inner})
    return replace(cut, outer=(*cut.outer, outer))


def _substitute(
    stage: Stage,
    builder: ExprBuilder,
    new: Mapping[LoopVar, IndexExpr],
    loops: Mapping[LoopVar, LoopVar | None],
) -> Stage:
    """With other variables; a loop that maps to None is gone."""

    def expr(value: Expr) -> Expr:
        return builder.substitute(value, new)

    def index(value: IndexExpr) -> IndexExpr:
        return value.substitute(new, expr)

    def over(variables: Loops) -> Loops:
        return tuple(made for var in variables if (made := loops.get(var, var)) is not None)

    def step(old: ReduceStep | StoreStep) -> ReduceStep | StoreStep:
        if isinstance(old, StoreStep):
            return StoreStep(old.tensor, index(old.index), expr(old.value), over(old.loops))
        guards = tuple(Guard(index(guard.index), guard.size) for guard in old.guards)
        return ReduceStep(old.name, old.kind, expr(old.value), over(old.loops), guards)

    product = stage.product
    if product:
        product = MatrixProduct(
            product.name,
            expr(product.left),
            expr(product.right),
            product.column,
            product.depth,
            product.batch,
        )
    return Stage(
        over(stage.outer),
        tuple(step(s) for s in stage.steps),
        tuple(replace(total, value=expr(total.value)) for total in stage.totals),
        stage.epilogue,
        product,
    )


def _division_count(stage: Stage) -> int:
    """Quotients and remainders that have to be computed."""
    return sum(1 for index in _indices(stage) for _ in _divisions(index))


def _indices(stage: Stage) -> Iterator[IndexExpr]:
    done: set[int] = set()
    for root in stage.expressions:
        for node in root.walk():
            if node.number in done:
                continue
            done.add(node.number)
            if node.op in ("load", "product"):
                yield node.data[1]
            elif node.op == "index":
                yield node.data
    for step in stage.steps:
        if isinstance(step, StoreStep):
            yield step.index
        else:
            yield from (guard.index for guard in step.guards)


def _divisions(index: IndexExpr) -> Iterator[Quotient | Remainder]:
    for atom, _ in index.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield atom
            yield from _divisions(atom.dividend)
