"""What a policy answers, and how its constants are declared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelpro.records import Action
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class Choice:
    """Where the tree grows next.

    seed: a fresh design, child of the root; improve: child of a node that works; debug: a fix, child of a failed node;
    combine: an improvement that borrows from a `second` node that works, of another seed.
    """

    parent: int
    action: Action
    donor: int | None = None


class Policy(Protocol):
    """A pure function of the tree and the random numbers: no state of its own, so a killed run goes on as it would have."""

    @property
    def name(self) -> str: ...

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """Never a pending or void parent, and always an answer: no policy gives a task up."""
        ...


SEED = Choice(0, "seed")


def expand(node: TreeNode) -> Choice:
    """The choice that expands a settled node by what it is: a seed, an improvement or a fix. A void one is never grown."""
    if node.id == 0:
        return SEED
    return Choice(node.id, "improve" if node.state == "ok" else "debug")


def combination(tree: Tree, node: TreeNode, interval: int, max_ratio: float) -> Choice | None:
    """A combination instead of an improvement of the node, where one is due; never with what compilers wrote.

    1. Due: `every` - 1 improvements or more were chosen since the last combination; 0: never.
    2. The node takes no more than `within` times as long as the fastest written candidate.
    3. Its second is the fastest one of another seed; it too is that near, and was not borrowed from here before.
    """
    if not interval or node.state != "ok" or node.seed <= tree.compiler_seeds or not _due(tree, interval):
        return None
    fastest = next(other for other in tree.ranked() if other.seed > tree.compiler_seeds)
    donor = next(
        (other for other in tree.ranked() if other.seed > tree.compiler_seeds and other.seed != node.seed), None
    )
    if donor is None or any(tree.nodes[child].donor == donor.id for child in node.children):
        return None
    near = all(each.ms and fastest.ms and each.ms <= max_ratio * fastest.ms for each in (node, donor))
    return Choice(node.id, "combine", donor.id) if near else None


def _due(tree: Tree, interval: int) -> bool:
    improved = 1  # the one that is to be chosen
    for node in reversed(tree.nodes):
        improved += node.action == "improve"
        if improved > interval or node.action == "combine":
            break
    return improved >= interval


def constant(default: float, low: float, high: float) -> Any:
    """A constant of a policy, with the range that `make` holds it to; whole where the default is an int."""
    return field(default=default, metadata={"low": low, "high": high})
