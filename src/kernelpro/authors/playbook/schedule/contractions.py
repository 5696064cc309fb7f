"""Stages as tiled or blocked matrix products: which loops are batch, rows, columns and depth.

A convolution is a contraction too. `find_contraction` determines which loops index only the left operand
(rows), only the right one (columns), both (batch), and the sum (depth).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from kernelpro.authors.playbook.ir.expressions import Expr, ExprBuilder, nodes_of
from kernelpro.authors.playbook.ir.indices import (
    IndexExpr,
    Loops,
    flat_index,
    iterations,
    unflatten_loops,
    variable,
)
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep, Stage, StoreStep
from kernelpro.authors.playbook.schedule.design import StageDesign
from kernelpro.authors.playbook.schedule.passes import scans_of

_MIN_TILE = 16
"""The smallest side of a tile that tensor cores accept."""
_MAX_ROW_TILE = 256
"""The longest row of a product that fits into the registers of a tile, together with 64 such rows."""
_TYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Contraction:
    """For each batch, row and column: the sum over depth of left * right."""

    left: Expr
    right: Expr
    batch: Loops
    rows: Loops
    columns: Loops
    depth: Loops
    guards: tuple[Guard, ...]
    """Elements of the left operand that fail a guard are 0."""
    right_guards: tuple[Guard, ...] = ()
    """The same for the right operand."""


def is_matmul(stage: Stage, design: StageDesign) -> bool:
    """Whether a GPU backend writes the stage as a tiled matrix product."""
    if stage.product is not None:
        return True
    return (design.order == "tiles" or stage.has_guarded_stores) and find_contraction(stage) is not None


def find_contraction(stage: Stage, min_side: int = _MIN_TILE) -> Contraction | None:
    """The stage as one matrix product, followed by steps that use its elements; None if it is not one, or if
    one of its sides is shorter than `min_side`."""
    if stage.product:
        p = stage.product
        return Contraction(
            p.left, p.right, p.batch, stage.outer[len(p.batch) :], (p.column,), p.depth, p.guards
        )
    if len(stage.reductions) != 1 or stage.totals or any(store.loops for store in stage.stores):
        return None
    return _as_contraction(stage, stage.reductions[0], min_side)


def _as_contraction(stage: Stage, step: ReduceStep, min_side: int) -> Contraction | None:
    if step.kind != "sum" or step.value.op != "mul" or step.value.dtype not in _TYPES or not step.loops:
        return None
    a, b = step.value.args
    inner = set(step.loops)
    guards = tuple(guard for guard in step.guards if guard.index.variables - inner <= a.variables)
    others = tuple(guard for guard in step.guards if guard not in guards)
    if any(guard.index.variables - inner - b.variables for guard in others):
        return None
    left, right = (a, b) if guards or not others else (b, a)
    if step.value.dtype != left.dtype or left.dtype != right.dtype:
        return None
    guards, others = (guards, others) if left is a else (others, guards)
    common = left.variables & right.variables
    if set(stage.outer) - (left.variables | right.variables) or set(step.loops) - common:
        return None
    batch = tuple(var for var in stage.outer if var in common)
    rows = tuple(var for var in stage.outer if var in left.variables - common)
    columns = tuple(var for var in stage.outer if var in right.variables - common)
    if min(iterations(loops) for loops in (rows, columns, step.loops)) < min_side:
        return None
    return Contraction(left, right, batch, rows, columns, step.loops, guards, others)


def name_product_elements(stage: Stage, column: IndexExpr, element: str) -> tuple[dict[Expr, str], bool]:
    """The expressions that refer to the product, each mapped to the name `element`, and whether the steps are
    element-wise: each iteration needs only its own element of the product."""
    nodes = [(step, node) for step in stage.stores for node in step.value.walk()]
    if not stage.product:
        return {node: element for _, node in nodes if node.op == "row"}, True
    if stage.reductions or stage.totals:
        return {}, False
    if any(iterations(step.loops) != stage.product.column.extent for step in stage.stores):
        return {}, False
    references = [(step, node) for step, node in nodes if node.op == "product"]
    elementwise = all(
        node.data[1].substitute(unflatten_loops(step.loops, column)) == column for step, node in references
    )
    return {node: element for _, node in references}, elementwise


def reduces_rows_of_tile(stage: Stage) -> bool:
    """Whether the stage reduces the rows of its product, and a tile that has all columns can hold everything
    that its steps need of a row."""
    if not stage.product or not stage.reductions or stage.totals:
        return False
    column, builds_on_rows = stage.product.column, True
    for step in stage.steps:
        references = nodes_of([step.value], "product")
        loops = unflatten_loops(step.loops, variable(column))
        fits = iterations(step.loops) == column.extent if step.loops else not references
        own = all(node.data[1].substitute(loops) == variable(column) for node in references)
        is_plain = isinstance(step, StoreStep) or not step.guards
        builds_on_rows &= fits and own and is_plain and not scans_of([step.value])
    return builds_on_rows and column.extent <= _MAX_ROW_TILE


def name_row_elements(stage: Stage, element: str) -> dict[Expr, str]:
    """The expressions that refer to the product, each mapped to the name `element`, for a tile that has all
    columns."""
    return dict.fromkeys(nodes_of([step.value for step in stage.steps], "product"), element)


def replace_product_with_loads(stage: Stage, tensor: str, parts: int) -> Stage:
    """The rest of the stage after its product was written to a tensor, which holds `parts` partial products
    one after another: an element of the product is the sum of its `parts` partial results."""
    assert stage.product
    builder, columns = ExprBuilder(), stage.product.column.extent
    memo: dict[Expr, Expr] = {}

    def load_product(node: Expr) -> Expr:
        if node.op != "product":
            return node
        offset = flat_index(stage.outer) * columns + node.data[1]
        starts = range(0, parts * stage.rows * columns, stage.rows * columns)
        loads = [builder.make("load", dtype=node.dtype, data=(tensor, offset + start)) for start in starts]
        return reduce(lambda a, b: builder.make("add", a, b), loads)

    def rewrite(value: Expr) -> Expr:
        return builder.rewrite(value, load_product, memo)

    return replace(stage, product=None).map_expressions(rewrite)
