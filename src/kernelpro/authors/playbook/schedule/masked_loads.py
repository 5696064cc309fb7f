"""Loads of which a condition on places hides a part, as a causal mask hides half of its scores: nobody reads it, so nobody
need load it."""

from __future__ import annotations

from collections.abc import Iterable

from kernelpro.authors.playbook.ir.expressions import Expr, indirect_operands
from kernelpro.authors.playbook.ir.indices import IndexExpr, LoopVar, constant

Predicate = frozenset[IndexExpr]
"""Holds where none of these is negative."""
_ALWAYS: Predicate = frozenset()


def masked_loads(roots: Iterable[Expr]) -> dict[Expr, Predicate]:
    """Loads that are not needed everywhere, and where they are."""
    roots = list(roots)
    known: dict[Expr, Predicate] = dict.fromkeys(roots, _ALWAYS)
    nodes = {node for root in roots for node in root.walk()}
    for node in sorted(nodes, key=lambda node: -node.number):  # who uses a value is younger than it
        own = known[node]
        for place, arg in enumerate((*node.args, *indirect_operands(node))):
            chosen = _predicate(node.args[0], place == 1) if node.op == "select" and place else _ALWAYS
            here = (
                _ALWAYS if node.op == "scan" else own | chosen
            )  # a running sum is made of what lies before it
            known[arg] = known[arg] & here if arg in known else here
    return {node: where for node, where in known.items() if node.op == "load" and where}


def _predicate(condition: Expr, holds: bool) -> Predicate:
    """What is known of places where a condition holds, or does not."""
    if condition.op == "not":
        return _predicate(condition.args[0], not holds)
    if condition.op == ("and" if holds else "or"):
        return _predicate(condition.args[0], holds) | _predicate(condition.args[1], holds)
    if condition.op not in ("lt", "le", "gt", "ge"):
        return _ALWAYS
    left, right = map(_index_value, condition.args)
    if left is None or right is None:
        return _ALWAYS
    rest = right - left if condition.op in ("lt", "le") else left - right
    rest = rest - 1 if condition.op in ("lt", "gt") else rest
    return frozenset({rest if holds else rest * -1 - 1})


def _index_value(value: Expr) -> IndexExpr | None:
    """A number that is made of places alone."""
    if value.op == "const" and isinstance(value.data, int):
        return constant(value.data)
    if value.op in ("add", "sub"):
        left, right = (_index_value(arg) for arg in value.args)
        return None if left is None or right is None else left + right * (1 if value.op == "add" else -1)
    return value.data if value.op == "index" and not indirect_operands(value) else None


def maximum_over(index: IndexExpr, var: LoopVar, first: IndexExpr, last: IndexExpr) -> IndexExpr | None:
    """The greatest value while `var` goes from `first` to `last`; None where that is not at one of its ends."""
    factor = index.coefficient(var)
    if var in (index - IndexExpr(((var, factor),)) if factor else index).variables:
        return None
    return index.substitute({var: last if factor > 0 else first}, lambda value: value)
