"""How a stage's steps are done for one row: in which passes over it, and what is kept from one pass to the next.

Language-neutral: writers turn passes into loops.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr
from kernelpro.authors.playbook.ir.indices import LoopVar
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep, Stage, StoreStep

EXPENSIVE_OPS = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "pow", "sqrt", "rsqrt", "div", "fmod"}
)
"""Operators that cost more than reading their result from the nearest cache."""


@dataclass
class RowPass:
    """Steps that go over the same loops at the same time."""

    loops: tuple[LoopVar, ...]
    steps: list[ReduceStep | StoreStep] = field(default_factory=list)
    cached: list[Expr] = field(default_factory=list)
    """Values of the row that are written to a buffer here, because later passes read them."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.steps[0].guards if self.steps and isinstance(self.steps[0], ReduceStep) else ()


def split_into_passes(stage: Stage) -> list[RowPass]:
    """Each step in the first pass in which everything it needs is there."""
    made: list[RowPass] = []
    known: dict[str, int] = {}
    for step in stage.steps:
        needs = [known[node.data] for node in _nodes([step.value]) if node.op == "row"]
        first = max(needs, default=-1) + 1
        guards = step.guards if isinstance(step, ReduceStep) else ()
        alone = any(node.op == "scan" for node in step.value.walk())
        place = next(
            (i for i in range(first, len(made)) if made[i].loops == step.loops and made[i].guards == guards),
            None,
        )
        if place is None or alone:
            made.append(RowPass(step.loops))
            place = len(made) - 1
        made[place].steps.append(step)
        if isinstance(step, ReduceStep):
            known[step.name] = place
    return made


def choose_cached(made: list[RowPass]) -> None:
    """Decide what is worth a buffer: what several passes over the same loops compute, at the cost of an operator that is
    heavy or of more than one read."""
    for place, later in enumerate(made):
        for node in _tops(later):
            first = next(
                (
                    p
                    for p in made[:place]
                    if p.loops == later.loops and not p.guards and node in _nodes(_roots(p))
                ),
                None,
            )
            if (
                first is not None
                and node not in first.cached
                and _worth_caching(node, made[:place], later.loops)
            ):
                first.cached.append(node)


def cached_before(made: list[RowPass], place: int) -> set[Expr]:
    return {node for earlier in made[:place] if earlier.loops == made[place].loops for node in earlier.cached}


def scans_of(roots: Iterable[Expr]) -> list[Expr]:
    return sorted(
        {node for root in roots for node in root.walk() if node.op == "scan"}, key=lambda node: node.number
    )


def loop_invariants(roots: Iterable[Expr], inner: set[LoopVar], known: Container[Expr]) -> list[Expr]:
    """The largest parts that are the same for the whole row: worth computing before the loop."""
    found: dict[Expr, None] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node in known or node.op in ("const", "row", "total"):
            continue
        if not node.variables & inner and node.op != "product":
            found[node] = None
            continue
        waiting += node.args
    return sorted(found, key=lambda node: node.number)


def _roots(one: RowPass) -> list[Expr]:
    return [step.value for step in one.steps]


def _nodes(roots: Iterable[Expr]) -> set[Expr]:
    return {node for root in roots for node in root.walk()}


def _tops(one: RowPass) -> list[Expr]:
    """The pass's values of the row, those nearest to its results first."""
    inner = set(one.loops)
    found = {
        node.number: node
        for node in _nodes(_roots(one))
        if node.variables & inner and node.op not in (*LEAVES, "cast")
    }
    return [found[number] for number in sorted(found, reverse=True)]


def _worth_caching(node: Expr, before: list[RowPass], loops: tuple[LoopVar, ...]) -> bool:
    kept = {other for one in before if one.loops == loops for other in one.cached}
    if any(other is not node and node in set(other.walk()) for other in kept):
        return False
    inner, reads = set(loops), set()
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if not at.variables & inner:
            continue
        if (at in kept and at is not node) or at.op in LEAVES:
            reads.add(at)
            continue
        if at.op in EXPENSIVE_OPS and not (at.op == "div" and not at.args[1].variables & inner):
            return True
        waiting += at.args
    return len(reads) > 1
