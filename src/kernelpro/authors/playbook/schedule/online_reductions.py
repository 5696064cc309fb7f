"""Reductions that can be made together with one they depend on, in one pass over a row that is read in pieces.

- The sum of exp(x - m) * y with m the maximum of x: when the maximum so far grows, the sum so far is scaled down.
- The sum of (x - mean)^2 with the mean of the same x: two pieces are joined by the difference of their means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, prod
from typing import Literal

from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.stages import ReduceStep, StoreStep
from kernelpro.authors.playbook.schedule.passes import RowPass


@dataclass(frozen=True)
class OnlineReduction:
    kind: Literal["scaled", "centred"]
    base: ReduceStep
    base_value: Expr
    """What its value takes from the base: the maximum, or the mean."""


def fuse_variance(made: list[RowPass]) -> tuple[list[RowPass], dict[str, OnlineReduction]]:
    """Like `joined`, with squares about a mean as the only followers, which are made of the same value as their bases."""
    left, followers = fuse_online(made, ("centred",))
    for one in left:
        one.steps = [
            replace(step, value=followers[step.name].base.value)
            if isinstance(step, ReduceStep) and step.name in followers
            else step
            for step in one.steps
        ]
    return left, followers


def fuse_online(
    made: list[RowPass], kinds: tuple[str, ...] = ("scaled", "centred")
) -> tuple[list[RowPass], dict[str, OnlineReduction]]:
    """The passes with followers of these kinds moved to their bases, and the followers by name."""
    followers: dict[str, OnlineReduction] = {}
    left: list[RowPass] = []
    for one in made:
        own = RowPass(one.loops)
        for step in one.steps:
            tried = ((p, _found(step, p, followers)) for p in left if p.loops == one.loops and not p.guards)
            home, found = next(
                ((p, found) for p, found in tried if found and found.kind in kinds), (None, None)
            )
            if home and found and isinstance(step, ReduceStep):
                home.steps.append(step)
                followers[step.name] = found
            else:
                own.steps.append(step)
        if own.steps:
            left.append(own)
    return left, followers


def _found(
    step: ReduceStep | StoreStep, one: RowPass, followers: dict[str, OnlineReduction]
) -> OnlineReduction | None:
    if not isinstance(step, ReduceStep) or step.kind != "sum" or step.guards:
        return None
    rows = {node.data for node in step.value.walk() if node.op == "row"}
    base = next(
        (s for s in one.steps if isinstance(s, ReduceStep) and {s.name} == rows and s.name not in followers),
        None,
    )
    if base is None:
        return None
    return _scaled(step, base) or _centred(step, base)


def _scaled(step: ReduceStep, base: ReduceStep) -> OnlineReduction | None:
    factor = step.value
    while factor.op == "mul":
        own = [arg for arg in factor.args if _of(arg, base)]
        if len(own) != 1:
            return None
        factor = own[0]
    if base.kind != "max" or factor.op != "exp" or factor.args[0].op != "sub":
        return None
    x, top = factor.args[0].args
    return OnlineReduction("scaled", base, top) if top.op == "row" and not _of(x, base) else None


def _centred(step: ReduceStep, base: ReduceStep) -> OnlineReduction | None:
    value = step.value
    if (
        base.kind != "sum"
        or value.op != "mul"
        or value.args[0] is not value.args[1]
        or value.args[0].op != "sub"
    ):
        return None
    x, mean = value.args[0].args
    if x is not base.value or mean.op != "mul" or mean.args[0].op != "row" or mean.args[1].op != "const":
        return None
    count = prod(var.extent for var in step.loops)
    return (
        OnlineReduction("centred", base, mean)
        if isclose(mean.args[1].data * count, 1.0, rel_tol=1e-6)
        else None
    )


def _of(value: Expr, base: ReduceStep) -> bool:
    return any(node.op == "row" and node.data == base.name for node in value.walk())
