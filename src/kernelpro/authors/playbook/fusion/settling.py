"""Settling a draft: one loop of two wherever nothing tells them apart, rows out of one long loop, fewer divisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from kernelpro.authors.playbook.fusion.drafts import Draft, Loops
from kernelpro.authors.playbook.ir.expressions import Expr, Pool
from kernelpro.authors.playbook.ir.indices import Index, Quotient, Remainder, Var, variable
from kernelpro.authors.playbook.ir.stages import Guard, Product, Reduce, Stage, Store

_FEW_ROWS = 64
_WIDTHS = range(4096, 255, -1)


def settled(draft: Draft) -> Stage:
    """The draft as a stage with as few and as long loops as can be."""
    stage = Stage(draft.outer, tuple(draft.steps), tuple(draft.totals), tuple(draft.after), draft.product)
    stage = _merged(stage, draft.pool, lambda s: s.outer if s.product is None else ())
    for loops in {step.loops: None for step in stage.steps}:
        stage = _merged(stage, draft.pool, partial(_now, like=loops))
    stage = _with_rows(_flat(stage, draft.pool), draft.pool)
    stage = _multiplied(stage, draft.pool)
    return replace(
        stage,
        outer=_lasting(stage.outer, bool(stage.product)),
        steps=tuple(_trimmed(step) for step in stage.steps),
    )


def _multiplied(stage: Stage, pool: Pool) -> Stage:
    """A division by what does not change within the row becomes a multiplication by its inverse."""
    made: dict[Expr, Expr] = {}

    def expr(root: Expr, inner: set[Var]) -> Expr:
        for node in root.walk():
            if node in made:
                continue
            args = [made[arg] for arg in node.args]
            if node.op == "div" and node.args[0].variables & inner and not node.args[1].variables & inner:
                made[node] = pool.make("mul", args[0], pool.make("div", pool.const(1.0, node.dtype), args[1]))
            elif args and tuple(args) != node.args:
                made[node] = pool.make(node.op, *args, dtype=node.dtype, data=node.data)
            else:
                made[node] = node
        return made[root]

    return replace(
        stage, steps=tuple(replace(step, value=expr(step.value, set(step.loops))) for step in stage.steps)
    )


def _lasting(loops: Loops, product: bool = False) -> Loops:
    """Without loops that run once."""
    return loops if product else tuple(var for var in loops if var.extent > 1)


def _trimmed(step: Reduce | Store) -> Reduce | Store:
    return replace(step, loops=_lasting(step.loops))


def _now(stage: Stage, like: Loops) -> Loops:
    """The loops of that name as the stage has them now: merging may have renamed the rest of it, never these."""
    return like if any(step.loops == like for step in stage.steps) else ()


def _merged(stage: Stage, pool: Pool, loops_of: Callable[[Stage], Loops]) -> Stage:
    loops = loops_of(stage)
    at = len(loops) - 2
    while at >= 0:
        first, second = loops[at], loops[at + 1]
        joint = Var(first.name + second.name.removeprefix("o"), first.extent * second.extent)
        new = {first: variable(joint) // second.extent, second: variable(joint) % second.extent}
        tried = _rewritten(stage, pool, new, {first: None, second: joint})
        if _awkward(tried) <= _awkward(stage):
            stage = tried
            loops = (*loops[:at], joint, *loops[at + 2 :])
        at -= 1
    return stage


def _flat(stage: Stage, pool: Pool) -> Stage:
    """Stores through which rows run on into each other: one long loop, where it can be cut into rows of a better length."""
    if not stage.outer or not _only_stores(stage) or not _width(stage.rows * stage.steps[0].loops[0].extent):
        return stage
    tried = stage
    while tried.outer and tried.steps[0].loops[0].extent < max(_WIDTHS):
        first, second = tried.outer[-1], tried.steps[0].loops[0]
        joint = Var(first.name + second.name, first.extent * second.extent)
        new = {first: variable(joint) // second.extent, second: variable(joint) % second.extent}
        merged = _rewritten(tried, pool, new, {first: None, second: joint})
        if _awkward(merged) > _awkward(tried):
            return stage
        tried = merged
    return tried


def _only_stores(stage: Stage) -> bool:
    """Along the same single loop, nothing running."""
    same = len({step.loops for step in stage.steps}) == 1 and len(stage.steps[0].loops) == 1
    plain = all(isinstance(s, Store) and not any(n.op == "scan" for n in s.value.walk()) for s in stage.steps)
    return same and plain and not stage.totals and not stage.product


def _width(extent: int) -> int:
    """A good length for rows that one long loop is cut into; 0 where none divides it."""
    return next((width for width in _WIDTHS if extent % width == 0 and extent > width), 0)


def _with_rows(stage: Stage, pool: Pool) -> Stage:
    """Stores along one long loop with hardly any rows: the loop is cut into rows, which can be worked on side by side."""
    if stage.rows >= _FEW_ROWS or not _only_stores(stage):
        return stage
    (var,) = stage.steps[0].loops
    width = _width(var.extent)
    if not width:
        return stage
    outer, inner = Var(f"{var.name}_row", var.extent // width), Var(f"{var.name}_in", width)
    new = {var: variable(outer) * width + variable(inner)}
    cut = _rewritten(stage, pool, new, {var: inner})
    return replace(cut, outer=(*cut.outer, outer))


def _rewritten(stage: Stage, pool: Pool, new: Mapping[Var, Index], loops: Mapping[Var, Var | None]) -> Stage:
    """With other variables; a loop that maps to None is gone."""

    def expr(value: Expr) -> Expr:
        return pool.rewritten(value, new)

    def index(value: Index) -> Index:
        return value.substituted(new, expr)

    def over(variables: Loops) -> Loops:
        return tuple(made for var in variables if (made := loops.get(var, var)) is not None)

    def step(old: Reduce | Store) -> Reduce | Store:
        if isinstance(old, Store):
            return Store(old.tensor, index(old.index), expr(old.value), over(old.loops))
        guards = tuple(Guard(index(guard.index), guard.size) for guard in old.guards)
        return Reduce(old.name, old.kind, expr(old.value), over(old.loops), guards)

    product = stage.product
    if product:
        product = Product(
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
        stage.after,
        product,
    )


def _awkward(stage: Stage) -> int:
    """Quotients and remainders that have to be computed."""
    return sum(1 for index in _indices(stage) for _ in _divisions(index))


def _indices(stage: Stage) -> Iterator[Index]:
    done: set[int] = set()
    for root in stage.values:
        for node in root.walk():
            if node.number in done:
                continue
            done.add(node.number)
            if node.op in ("load", "product"):
                yield node.data[1]
            elif node.op == "index":
                yield node.data
    for step in stage.steps:
        if isinstance(step, Store):
            yield step.index
        else:
            yield from (guard.index for guard in step.guards)


def _divisions(index: Index) -> Iterator[Quotient | Remainder]:
    for atom, _ in index.terms:
        if isinstance(atom, (Quotient, Remainder)):
            yield atom
            yield from _divisions(atom.of)
