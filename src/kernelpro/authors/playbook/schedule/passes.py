"""Passes over a row: which steps of a stage share a loop, and which values a pass caches for later ones."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from kernelpro.authors.playbook.ir.expressions import LEAVES, Expr, nodes_of
from kernelpro.authors.playbook.ir.indices import Loops, LoopVar
from kernelpro.authors.playbook.ir.stages import Guard, ReduceStep, Stage, StageStep

EXPENSIVE_OPS = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "pow", "sqrt", "rsqrt", "div", "fmod"}
    | {"exp2", "exp_below_0", "gelu", "log1p_exp", "mish"}
)
"""Operations that cost more than loading their result from the L1 cache."""


@dataclass
class RowPass:
    """Steps that run in the same loops."""

    loops: Loops
    steps: list[StageStep] = field(default_factory=list)
    cached: list[Expr] = field(default_factory=list)
    """Values that this pass writes to a buffer because later passes read them."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards that all its steps share."""
        return self.steps[0].guards if self.steps and isinstance(self.steps[0], ReduceStep) else ()

    @property
    def roots(self) -> list[Expr]:
        """The expressions of its steps."""
        return [step.value for step in self.steps]

    @property
    def reductions(self) -> list[ReduceStep]:
        """The steps that reduce."""
        return [step for step in self.steps if isinstance(step, ReduceStep)]


def split_into_passes(stage: Stage) -> list[RowPass]:
    """Puts each step into the first pass that comes after the reductions it depends on. A scan gets its own
    pass."""
    passes: list[RowPass] = []
    pass_of: dict[str, int] = {}
    for step in stage.steps:
        first = max((pass_of[node.data] for node in nodes_of([step.value], "row")), default=-1) + 1
        guards = step.guards if isinstance(step, ReduceStep) else ()
        position = next(
            (
                i
                for i in range(first, len(passes))
                if passes[i].loops == step.loops and passes[i].guards == guards
            ),
            None,
        )
        if position is None or nodes_of([step.value], "scan"):
            passes.append(RowPass(step.loops))
            position = len(passes) - 1
        passes[position].steps.append(step)
        if isinstance(step, ReduceStep):
            pass_of[step.name] = position
    return passes


def choose_cached(passes: list[RowPass]) -> None:
    """Marks the values that are worth caching: several passes over the same loops compute them, and computing
    them again takes an expensive operation or more than one load."""
    for position, later in enumerate(passes):
        for node in _row_values(later):
            first = next(
                (
                    earlier
                    for earlier in passes[:position]
                    if earlier.loops == later.loops and not earlier.guards and node in nodes_of(earlier.roots)
                ),
                None,
            )
            already_cached = cached_before(passes, position)
            if first and node not in first.cached and _worth_caching(node, already_cached, later.loops):
                first.cached.append(node)


def cached_before(passes: list[RowPass], position: int) -> set[Expr]:
    """The values that earlier passes over the same loops have cached."""
    loops = passes[position].loops
    return {node for earlier in passes[:position] if earlier.loops == loops for node in earlier.cached}


def scans_of(roots: Iterable[Expr]) -> list[Expr]:
    """The scans in these expressions, in order of creation."""
    return sorted(nodes_of(roots, "scan"), key=lambda node: node.number)


def is_elementwise(stage: Stage) -> bool:
    """Whether the stage only stores, in the same loops for all steps, and without scans or totals."""
    only_stores = len(stage.stores) == len(stage.steps)
    same_loops = len({step.loops for step in stage.steps}) == 1
    return only_stores and same_loops and not stage.totals and not scans_of(s.value for s in stage.steps)


def loop_invariants(roots: Iterable[Expr], inner: set[LoopVar], available: Container[Expr]) -> list[Expr]:
    """The largest subexpressions that do not vary with the inner loops and can be hoisted out of them."""
    invariants: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in available or node.op in ("const", "row", "total"):
            continue
        if not node.variables & inner and node.op != "product":
            invariants[node] = None
            continue
        stack += node.args
    return sorted(invariants, key=lambda node: node.number)


def _row_values(row_pass: RowPass) -> list[Expr]:
    """The computed values that vary along the row, those closest to the results first."""
    inner = set(row_pass.loops)
    values = [n for n in nodes_of(row_pass.roots) if n.variables & inner and n.op not in (*LEAVES, "cast")]
    return sorted(values, key=lambda node: -node.number)


def _worth_caching(node: Expr, cached: set[Expr], loops: Loops) -> bool:
    if any(other is not node and node in nodes_of([other]) for other in cached):
        return False
    inner, reads = set(loops), set()
    stack = [node]
    while stack:
        operand = stack.pop()
        if not operand.variables & inner:
            continue
        if (operand in cached and operand is not node) or operand.op in LEAVES:
            reads.add(operand)
            continue
        divides_by_invariant = operand.op == "div" and not operand.args[1].variables & inner
        if operand.op in EXPENSIVE_OPS and not divides_by_invariant:
            return True
        stack += operand.args
    return len(reads) > 1
