"""Masked loads: loads whose value is used only where a condition on indices holds.

A causal mask, for example, discards half of the scores, so those scores need not be loaded.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, constant

Predicate = frozenset[IndexExpr]
"""A condition: it holds where all of these index expressions are at least 0."""
_ALWAYS: Predicate = frozenset()


def masked_loads(roots: Iterable[Expr], op: str = "load") -> dict[Expr, Predicate]:
    """The loads (or nodes of another `op`) that are not needed everywhere, each with the predicate under
    which it is needed."""
    roots = list(roots)
    predicates: dict[Expr, Predicate] = dict.fromkeys(roots, _ALWAYS)
    # Nodes have higher numbers than their operands, so this order visits every user before its operands.
    for node in sorted(nodes_of(roots), key=lambda node: -node.number):
        for position, operand in enumerate(node.operands):
            needed = predicates[node]
            if node.op == "select" and position:
                needed |= _implied(node.args[0], position == 1)
            elif node.op == "scan":  # an element contributes to all later elements of the scan
                needed = _ALWAYS
            predicates[operand] = predicates[operand] & needed if operand in predicates else needed
    return {node: predicate for node, predicate in predicates.items() if node.op == op and predicate}


def _implied(condition: Expr, holds: bool) -> Predicate:
    """A predicate that is true whenever the condition is `holds`; _ALWAYS if nothing follows."""
    if condition.op == "not":
        return _implied(condition.args[0], not holds)
    if condition.op == ("and" if holds else "or"):
        return _implied(condition.args[0], holds) | _implied(condition.args[1], holds)
    if condition.op not in ("lt", "le", "gt", "ge"):
        return _ALWAYS
    left, right = map(_index_value, condition.args)
    if left is None or right is None:
        return _ALWAYS
    difference = right - left if condition.op in ("lt", "le") else left - right
    difference = difference - 1 if condition.op in ("lt", "gt") else difference
    return frozenset({difference if holds else difference * -1 - 1})


def _index_value(value: Expr) -> IndexExpr | None:
    """The value as an index expression; None if it depends on data."""
    if value.op == "const" and isinstance(value.data, int):
        return constant(value.data)
    if value.op in ("add", "sub"):
        left, right = (_index_value(arg) for arg in value.args)
        return None if left is None or right is None else left + right * (1 if value.op == "add" else -1)
    return value.data if value.op == "index" and not value.operands else None


def maximum_over(index: IndexExpr, var: LoopVar, first: IndexExpr, last: IndexExpr) -> IndexExpr | None:
    """The maximum of an index while `var` runs from `first` to `last`; None if `var` also occurs inside a
    quotient or remainder."""
    factor = index.coefficient(var)
    if var in (index - IndexExpr(((var, factor),)) if factor else index).variables:
        return None
    return index.substitute({var: last if factor > 0 else first})
