"""Run a policy on a landscape.

A landscape acts as author, compiler and judge: given a new node of the tree, it returns the result.
`landscapes` generates them from a model of kernels, `recorded` from a recorded run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol

from kernelpro.search.choice import Policy
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class SimulatedResult:
    """The result of one candidate."""

    ms: float | None
    """Measured time; None: failed."""
    true_ms: float | None
    """The time without measurement noise."""
    hidden: Any
    """The landscape's state of the candidate. Policies do not see it."""


class Landscape(Protocol):
    """A simulated task."""

    @property
    def baseline_ms(self) -> float:
        """Time of the baseline."""
        ...

    @property
    def floor_ms(self) -> float:
        """Smallest possible time."""
        ...

    def attempt(self, tree: Tree, node: TreeNode, hidden: list[Any], rng: random.Random) -> SimulatedResult:
        """The result of the pending node. `hidden[id]` is the landscape's state of an older node."""
        ...


def simulate(
    policy: Policy, landscape: Landscape, budget: int, concurrency: int, rng: random.Random
) -> list[float]:
    """True time of the best-measured node after each candidate; apart from noise, at most the baseline's.

    1. While fewer than `concurrency` candidates are pending and the budget allows: choose, add, and draw the
       result,
       which the tree does not see yet.
    2. Settle a random pending candidate: candidates take different times to write and to build.
    """
    tree = Tree(landscape.baseline_ms, landscape.floor_ms, budget=budget)
    policy_rng, landscape_rng = random.Random(rng.getrandbits(64)), random.Random(rng.getrandbits(64))
    hidden: list[Any] = [None]
    true_ms: list[float | None] = [landscape.baseline_ms]
    pending: list[tuple[int, SimulatedResult]] = []
    curve: list[float] = []
    while len(curve) < budget:
        while len(pending) < concurrency and len(tree) <= budget:
            choice = policy.choose(tree, policy_rng)
            node = tree.add(choice.parent, choice.action, choice.donor)
            result = landscape.attempt(tree, node, hidden, landscape_rng)
            hidden.append(result.hidden)
            true_ms.append(result.true_ms)
            pending.append((node.id, result))
        id, result = pending.pop(landscape_rng.randrange(len(pending)))
        tree.settle(id, result.ms)
        best = true_ms[tree.best().id]
        assert best is not None
        curve.append(best)
    return curve
