"""Epsilon-greedy over the tree, as in STARK (arXiv 2510.16996).

The score of a node is its time; a failed node scores infinity. A node is closed when it has more than
`max_failures` children, none pending, and nothing below it works. The root can be
chosen until it has `max_seeds` children.

1. With probability `epsilon` explore: a leaf drawn uniformly among the open ones, those under no closed node.
2. Otherwise exploit: the fastest open node, the root (at the baseline's time) among them.
3. If that finds nothing, try the other one. If neither finds anything, choose a seed in spite of `max_seeds`:
   the policy never gives up.
4. A failed node is debugged, the root seeded, any other node improved.

Pending nodes are not leaves and have no score. A node with a pending child is not a leaf either, so choices
made meanwhile go elsewhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, constant, expand
from kernelpro.search.tree import Tree, TreeNode

_DRAWS = 16
"""Draws by rejection before the open leaves are listed: expected cost O(depth) while many leaves are open."""


@dataclass(frozen=True)
class EpsilonGreedy:
    """STARK's policy."""

    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = constant(0.35, 0.0, 1.0)
    """STARK: 0.3 to 0.4."""
    max_seeds: int = constant(5, 1, 1000)
    """STARK: the root has at most about 5 children."""
    max_failures: int = constant(3, 1, 1000)
    """STARK: a node with more than about 3 children that all failed is closed."""

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """See the module's docstring."""
        explore = rng.random() < self.epsilon
        node = self._leaf(tree, rng) if explore else self._fastest(tree)
        if node is None:
            node = self._fastest(tree) if explore else self._leaf(tree, rng)
        return SEED if node is None else expand(node)

    def is_closed(self, node: TreeNode) -> bool:
        """Whether everything below the node failed, in more than `max_failures` children."""
        return (
            len(node.children) > self.max_failures
            and not node.pending
            and node.working == (node.state == "ok")
            and node.id != 0
        )

    def _fastest(self, tree: Tree) -> TreeNode | None:
        root = tree.nodes[0] if len(tree.nodes[0].children) < self.max_seeds else None
        for node in tree.ranked():
            if root is not None and node.ms is not None and node.ms >= tree.baseline_ms:
                break
            if not self.is_closed(node):
                return node
        return root

    def _leaf(self, tree: Tree, rng: random.Random) -> TreeNode | None:
        def is_open(id: int) -> bool:
            return not any(self.is_closed(node) for node in tree.path(id))

        if not tree.leaves:
            return None
        for _ in range(_DRAWS):
            if is_open(id := rng.choice(tree.leaves)):
                return tree.nodes[id]
        listed = [id for id in tree.leaves if is_open(id)]
        return tree.nodes[rng.choice(listed)] if listed else None
