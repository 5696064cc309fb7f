"""Stages as products of matrices on a GPU: which loops are rows, columns and depth, and what is done with each element.

A convolution is one too, where its sum runs over something that outputs share: `contraction` finds which loops are the
rows of the one operand, which the columns of the other, and which they have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kernelpro.authors.playbook.codegen.printer import Names
from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, flatten, unflatten, variable
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep, Stage, StoreStep

_SMALLEST = 16
"""The least side of a tile that tensor cores take."""
_TYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Contraction:
    """For each batch, row and column: the sum over depth of left * right."""

    left: Expr
    right: Expr
    batch: tuple[LoopVar, ...]
    rows: tuple[LoopVar, ...]
    columns: tuple[LoopVar, ...]
    depth: tuple[LoopVar, ...]
    guards: tuple[Guard, ...]
    """Of the left operand: outside it is 0."""


def find_contraction(stage: Stage) -> Contraction | None:
    """The stage as one product followed by steps for each of its elements; None if it is not."""
    if stage.product:
        p = stage.product
        return Contraction(p.left, p.right, p.batch, stage.outer[len(p.batch) :], (p.column,), (p.depth,), ())
    reduces = stage.reductions
    if (
        len(reduces) != 1
        or stage.totals
        or reduces[0].kind != "sum"
        or any(s.loops for s in stage.steps if isinstance(s, StoreStep))
    ):
        return None
    return _shared(stage, reduces[0])


def _shared(stage: Stage, step: ReduceStep) -> Contraction | None:
    if step.value.op != "mul" or step.value.dtype not in _TYPES or not step.loops:
        return None
    a, b = step.value.args
    guarded = {var for guard in step.guards for var in guard.index.variables} - set(step.loops)
    left, right = (b, a) if guarded & b.variables else (a, b)
    if guarded - left.variables or step.value.dtype != left.dtype or left.dtype != right.dtype:
        return None
    outer = set(stage.outer)
    if (left.variables | right.variables) & outer != outer or not set(
        step.loops
    ) <= left.variables & right.variables:
        return None
    batch, rows, columns = list[LoopVar](), list[LoopVar](), list[LoopVar]()
    for var in stage.outer:
        side = (
            batch if var in left.variables & right.variables else rows if var in left.variables else columns
        )
        side.append(var)
    if min(size(loops) for loops in (rows, columns, step.loops)) < _SMALLEST:
        return None
    return Contraction(left, right, tuple(batch), tuple(rows), tuple(columns), step.loops, step.guards)


def size(loops: Sequence[LoopVar]) -> int:
    return prod(var.extent for var in loops)


def unflatten_loops(loops: Sequence[LoopVar], flat: IndexExpr) -> dict[LoopVar, IndexExpr]:
    """The loops' variables from their common number."""
    return dict(zip(loops, unflatten(flat, [var.extent for var in loops]), strict=True))


def name_product_elements(stage: Stage, column: IndexExpr, element: str) -> tuple[Names, bool]:
    """`element` as what the steps' expressions call the product, and whether each of them needs its own element alone."""
    steps = [step for step in stage.steps if isinstance(step, StoreStep)]
    nodes = [(step, node) for step in steps for node in step.value.walk()]
    if not stage.product:
        return {node: element for _, node in nodes if node.op == "row"}, True
    own = len(steps) == len(stage.steps) and not stage.totals
    own = own and all(size(step.loops) == stage.product.column.extent for step in steps)
    found: Names = {}
    for step, node in nodes if own else ():
        if node.op == "product":
            found[node] = element
            own = (
                own
                and node.data[1].substitute(unflatten_loops(step.loops, column), lambda value: value)
                == column
            )
    return found, own


def replace_product_with_loads(stage: Stage, tensor: str, parts: int) -> Stage:
    """The same stage when the product's elements lie in a tensor: the sum of so many parts, one behind the other."""
    assert stage.product
    column, builder = stage.product.column, ExprBuilder()
    outer = flatten([variable(var) for var in stage.outer], [var.extent for var in stage.outer])
    made: dict[int, Expr] = {}

    def again(node: Expr) -> Expr:
        data = node.data
        if node.op in ("load", "product"):
            data = (data[0], data[1].substitute({}, lambda value: made[value.number]))
        elif node.op == "index":
            data = data.substitute({}, lambda value: made[value.number])
        if node.op != "product":
            return builder.make(
                node.op, *(made[arg.number] for arg in node.args), dtype=node.dtype, data=data
            )
        at = outer * column.extent + data[1]
        sizes = range(0, parts * stage.rows * column.extent, stage.rows * column.extent)
        loads = [builder.make("load", dtype=node.dtype, data=(tensor, at + start)) for start in sizes]
        total = loads[0]
        for load in loads[1:]:
            total = builder.make("add", total, load)
        return total

    def rewritten(value: Expr) -> Expr:
        for node in value.walk():
            if node.number not in made:
                made[node.number] = again(node)
        return made[value.number]

    return replace(
        stage,
        steps=tuple(replace(step, value=rewritten(step.value)) for step in stage.steps),
        totals=tuple(replace(total, value=rewritten(total.value)) for total in stage.totals),
        after=tuple(replace(step, value=rewritten(step.value)) for step in stage.epilogue),
        product=None,
    )
