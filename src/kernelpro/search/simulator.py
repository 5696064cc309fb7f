"""Searches without a GPU and without an author: a policy against a landscape.

A landscape plays author, compiler and judge at once: given where the tree grows, it says what came of it. `landscapes`
makes them from a model of kernels, `replay` from a recorded run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from kernelpro.search.choice import Policy
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class Outcome:
    ms: float | None
    """Measured time; None: failed."""
    true_ms: float | None
    """The time without the noise of the measurement."""
    hidden: Any
    """What the landscape remembers of the candidate; no policy sees it."""


class Landscape(Protocol):
    @property
    def baseline_ms(self) -> float: ...

    @property
    def floor_ms(self) -> float: ...

    def attempt(self, tree: Tree, node: TreeNode, hidden: list[Any], rng: random.Random) -> Outcome:
        """What the pending node turns out to be; `hidden[id]` is what the landscape remembers of the older nodes."""
        ...


def run(policy: Policy, landscape: Landscape, budget: int, in_flight: int, rng: random.Random) -> list[float]:
    """True time of the best-measured node after each candidate; at most the baseline's but for noise.

    1. While fewer than `in_flight` candidates are pending and the budget allows: choose, add, and draw the outcome, which
       the tree does not see yet.
    2. Settle one of the pending, at random: candidates take different times to write and to build.
    """
    tree = Tree(landscape.baseline_ms, landscape.floor_ms)
    deciding, happening = random.Random(rng.getrandbits(64)), random.Random(rng.getrandbits(64))
    hidden: list[Any] = [None]
    true: list[float | None] = [landscape.baseline_ms]
    pending: list[tuple[int, Outcome]] = []
    curve: list[float] = []
    while len(curve) < budget:
        while len(pending) < in_flight and len(tree) <= budget:
            choice = policy.choose(tree, deciding)
            node = tree.add(choice.parent, choice.action, choice.donor)
            outcome = landscape.attempt(tree, node, hidden, happening)
            hidden.append(outcome.hidden)
            true.append(outcome.true_ms)
            pending.append((node.id, outcome))
        id, outcome = pending.pop(happening.randrange(len(pending)))
        tree.settle(id, outcome.ms)
        best = true[tree.best().id]
        assert best is not None
        curve.append(best)
    return curve
