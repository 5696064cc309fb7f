"""Online reductions: a reduction is computed in the same pass over the row as the one that it depends on.

- Rescaled (softmax): the sum of exp(x - m) * y, where m is the maximum of x. When the running maximum grows,
  the running sum is scaled down.
- Centered (variance): the sum of (x - mean)^2, where mean is the mean of the same x. Chunks are merged using
  the difference of their means, as in Welford's algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import Literal

from kernelpro.authors.playbook.ir.expressions import Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import iterations
from kernelpro.authors.playbook.ir.stages import ReduceStep, StageStep
from kernelpro.authors.playbook.schedule.passes import RowPass


@dataclass(frozen=True)
class OnlineReduction:
    """How a reduction depends on another one, its base."""

    kind: Literal["rescaled", "centered"]
    base: ReduceStep
    base_value: Expr
    """The part of its value that comes from the base: the maximum or the mean."""


def fuse_variance(passes: list[RowPass]) -> tuple[list[RowPass], dict[str, OnlineReduction]]:
    """Like `fuse_online`, but only for centered sums. The value of such a step is replaced by its base's,
    x."""
    fused, online = fuse_online(passes, ("centered",))
    for row_pass in fused:
        row_pass.steps = [
            replace(step, value=online[step.name].base.value)
            if isinstance(step, ReduceStep) and step.name in online
            else step
            for step in row_pass.steps
        ]
    return fused, online


def fuse_online(
    passes: list[RowPass], kinds: tuple[str, ...] = ("rescaled", "centered")
) -> tuple[list[RowPass], dict[str, OnlineReduction]]:
    """Moves reductions of these kinds into the pass of their base. Returns the passes, and the moved
    reductions by name."""
    online: dict[str, OnlineReduction] = {}
    fused: list[RowPass] = []
    for row_pass in passes:
        remaining = RowPass(row_pass.loops)
        for step in row_pass.steps:
            earlier = [p for p in fused if p.loops == row_pass.loops and not p.guards]
            matches = ((p, _match(step, p, online)) for p in earlier)
            home, match = next(((p, m) for p, m in matches if m and m.kind in kinds), (None, None))
            if home and match and isinstance(step, ReduceStep):
                home.steps.append(step)
                online[step.name] = match
            else:
                remaining.steps.append(step)
        if remaining.steps:
            fused.append(remaining)
    return fused, online


def _match(step: StageStep, row_pass: RowPass, online: dict[str, OnlineReduction]) -> OnlineReduction | None:
    if not isinstance(step, ReduceStep) or step.kind != "sum" or step.guards:
        return None
    dependencies = {node.data for node in nodes_of([step.value], "row")}
    bases = [base for base in row_pass.reductions if {base.name} == dependencies and base.name not in online]
    return _match_rescaled(step, bases[0]) or _match_centered(step, bases[0]) if bases else None


def _match_rescaled(step: ReduceStep, base: ReduceStep) -> OnlineReduction | None:
    factor = step.value
    while factor.op == "mul":
        dependent = [arg for arg in factor.args if _depends_on(arg, base)]
        if len(dependent) != 1:
            return None
        factor = dependent[0]
    if base.kind != "max" or factor.op != "exp" or factor.args[0].op != "sub":
        return None
    x, maximum = factor.args[0].args
    matches = maximum.op == "row" and not _depends_on(x, base)
    return OnlineReduction("rescaled", base, maximum) if matches else None


def _match_centered(step: ReduceStep, base: ReduceStep) -> OnlineReduction | None:
    value = step.value
    is_square = value.op == "mul" and value.args[0] is value.args[1]
    if base.kind != "sum" or not is_square or value.args[0].op != "sub":
        return None
    x, mean = value.args[0].args
    if x is not base.value or mean.op != "mul" or mean.args[0].op != "row" or mean.args[1].op != "const":
        return None
    divides_by_count = isclose(mean.args[1].data * iterations(step.loops), 1.0, rel_tol=1e-6)
    return OnlineReduction("centered", base, mean) if divides_by_count else None


def _depends_on(value: Expr, base: ReduceStep) -> bool:
    return any(node.data == base.name for node in nodes_of([value], "row"))
