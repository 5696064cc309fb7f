"""Loads of which a condition on places hides a part, as a causal mask hides half of its scores: nobody reads it, so nobody
need load it."""

from __future__ import annotations

from collections.abc import Iterable

from kernelpro.authors.playbook.ir.expressions import Expr, loaded_numbers
from kernelpro.authors.playbook.ir.indices import Index, Var, constant

Where = frozenset[Index]
"""Holds where none of these is negative."""
_EVERYWHERE: Where = frozenset()


def hidden(roots: Iterable[Expr]) -> dict[Expr, Where]:
    """Loads that are not needed everywhere, and where they are."""
    roots = list(roots)
    known: dict[Expr, Where] = dict.fromkeys(roots, _EVERYWHERE)
    nodes = {node for root in roots for node in root.walk()}
    for node in sorted(nodes, key=lambda node: -node.number):  # who uses a value is younger than it
        own = known[node]
        for place, arg in enumerate((*node.args, *loaded_numbers(node))):
            chosen = _where(node.args[0], place == 1) if node.op == "select" and place else _EVERYWHERE
            here = (
                _EVERYWHERE if node.op == "scan" else own | chosen
            )  # a running sum is made of what lies before it
            known[arg] = known[arg] & here if arg in known else here
    return {node: where for node, where in known.items() if node.op == "load" and where}


def _where(condition: Expr, holds: bool) -> Where:
    """What is known of places where a condition holds, or does not."""
    if condition.op == "not":
        return _where(condition.args[0], not holds)
    if condition.op == ("and" if holds else "or"):
        return _where(condition.args[0], holds) | _where(condition.args[1], holds)
    if condition.op not in ("lt", "le", "gt", "ge"):
        return _EVERYWHERE
    left, right = map(_place, condition.args)
    if left is None or right is None:
        return _EVERYWHERE
    rest = right - left if condition.op in ("lt", "le") else left - right
    rest = rest - 1 if condition.op in ("lt", "gt") else rest
    return frozenset({rest if holds else rest * -1 - 1})


def _place(value: Expr) -> Index | None:
    """A number that is made of places alone."""
    if value.op == "const" and isinstance(value.data, int):
        return constant(value.data)
    if value.op in ("add", "sub"):
        left, right = (_place(arg) for arg in value.args)
        return None if left is None or right is None else left + right * (1 if value.op == "add" else -1)
    return value.data if value.op == "index" and not loaded_numbers(value) else None


def most(index: Index, var: Var, first: Index, last: Index) -> Index | None:
    """The greatest value while `var` goes from `first` to `last`; None where that is not at one of its ends."""
    factor = index.coefficient(var)
    if var in (index - Index(((var, factor),)) if factor else index).variables:
        return None
    return index.substituted({var: last if factor > 0 else first}, lambda value: value)
