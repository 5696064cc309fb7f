"""Epsilon-greedy over the tree, as in STARK (arXiv 2510.16996).

Score = time, failed = infinite. A node is closed when it has more than `dead` children, none pending, and nothing below
it works. The root takes part until it has `throttle` children.

1. With probability `epsilon`: explore, a leaf drawn uniformly among the open ones, i.e. those under no closed node.
2. Else: exploit, the fastest open node, the root (at the baseline's time) among them.
3. Where the draw finds nothing, the other of the two; where neither finds anything, a seed in spite of the throttle:
   a task is never given up.
4. A failed node is debugged, the root seeded, any other improved.

Pending nodes are no leaves and have no score. A leaf that received a child is no leaf while that child is in flight, so
choices made meanwhile go elsewhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, constant, expand
from kernelpro.search.tree import Tree, TreeNode

_DRAWS = 16
"""Draws by rejection before the open leaves are listed: expected cost O(depth) while a fair share of them is open."""


@dataclass(frozen=True)
class EpsilonGreedy:
    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = constant(0.35, 0.0, 1.0)
    """STARK: 0.3 to 0.4."""
    throttle: int = constant(5, 1, 1000)
    """STARK: the root has at most about 5 children."""
    dead: int = constant(3, 1, 1000)
    """STARK: a node with more than about 3 children that all failed is closed."""

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        explore = rng.random() < self.epsilon
        node = self._leaf(tree, rng) if explore else self._fastest(tree)
        if node is None:
            node = self._fastest(tree) if explore else self._leaf(tree, rng)
        return SEED if node is None else expand(node)

    def closed(self, node: TreeNode) -> bool:
        return (
            len(node.children) > self.dead
            and not node.pending
            and node.working == (node.state == "ok")
            and node.id != 0
        )

    def _fastest(self, tree: Tree) -> TreeNode | None:
        root = tree.nodes[0] if len(tree.nodes[0].children) < self.throttle else None
        for node in tree.ranked():
            if root is not None and node.ms is not None and node.ms >= tree.baseline_ms:
                break
            if not self.closed(node):
                return node
        return root

    def _leaf(self, tree: Tree, rng: random.Random) -> TreeNode | None:
        def is_open(id: int) -> bool:
            return not any(self.closed(node) for node in tree.path(id))

        if not tree.leaves:
            return None
        for _ in range(_DRAWS):
            if is_open(id := rng.choice(tree.leaves)):
                return tree.nodes[id]
        listed = [id for id in tree.leaves if is_open(id)]
        return tree.nodes[rng.choice(listed)] if listed else None
