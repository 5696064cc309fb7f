"""The interface of policies: the choice that they return, and how they declare constants."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelpro.records import Action
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class Choice:
    """Where to expand the tree.

    seed: a fresh design, child of the root. improve: child of a node that works. debug: a fix, child of a
    failed node. combine: an improvement that borrows from a `donor`, a node of another seed that works.
    """

    parent: int
    action: Action
    donor: int | None = None


class Policy(Protocol):
    """A pure function of the tree and the random numbers. It has no state, so a killed run continues
    unchanged."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """The next choice, whose parent is never pending or void. A policy always returns one."""
        ...


SEED = Choice(0, "seed")


def expand(node: TreeNode) -> Choice:
    """The choice that expands a settled node: a seed, an improvement or a fix. A void node is never
    expanded."""
    if node.id == 0:
        return SEED
    return Choice(node.id, "improve" if node.state == "ok" else "debug")


def combination(tree: Tree, node: TreeNode, interval: int, max_ratio: float) -> Choice | None:
    """A combination instead of an improvement of the node, or None. Compilers' code is never combined.

    A combination is chosen if all of this holds:

    1. At least `interval` - 1 improvements were chosen since the last combination. 0: never.
    2. The node takes at most `max_ratio` times as long as the fastest candidate that an author wrote.
    3. The donor, the fastest candidate of another seed that an author wrote, meets condition 2 too, and this
       node has not borrowed from it yet.
    """
    if node.state != "ok" or node.seed <= tree.compiler_seeds or not _is_due(tree, interval):
        return None
    written = [other for other in tree.ranked() if other.seed > tree.compiler_seeds]
    donor = next((other for other in written if other.seed != node.seed), None)
    if donor is None or any(tree.nodes[child].donor == donor.id for child in node.children):
        return None
    fastest = written[0].ms
    near = all(other.ms and fastest and other.ms <= max_ratio * fastest for other in (node, donor))
    return Choice(node.id, "combine", donor.id) if near else None


def _is_due(tree: Tree, interval: int) -> bool:
    if not interval:
        return False
    improvements = 1  # the one to be chosen now
    for node in reversed(tree.nodes):
        improvements += node.action == "improve"
        if improvements > interval or node.action == "combine":
            break
    return improvements >= interval


def constant(default: float, low: float, high: float) -> Any:
    """A constant of a policy, with the range that `make_policy` enforces. An int default allows only ints."""
    return field(default=default, metadata={"low": low, "high": high})
