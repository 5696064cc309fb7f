"""Monte-Carlo tree search with progressive widening, in the manner of KernelPro (arXiv 2606.26453), whose constants are unknown.

A candidate is built, verified and timed when it is added, so expansion is the evaluation and there are no rollouts.

1. Seeds first: until the root has `seeds` children, a seed.
2. Fresh seeds: when `fresh` candidates passed since the last seed; or when `plateau` candidates passed since the best
   was found and as many since the last seed. Never before half as many passed as there are seeds, so that the
   root's children, all of which a choice looks at, grow with the square root of the tree.
3. Else descend from the root. At a node with n settled and flying nodes in its subtree:
   a. Its live children are the pending ones and those that are not closed (below).
   b. Widening: it may have max(1, floor(w n^alpha)) live children, where w = `width`, times `bonus` if it works and beat
      its parent (asymmetric branching); a failed node may have one. With fewer, or with none to descend to: grow it.
   c. Otherwise go to the settled live child of the highest
          Q / B + c sqrt(log(n) / m) - `loss` f / m
      where m and f are the child's settled and flying nodes together and its flying ones (virtual loss), B is the best
      reward of the tree, c = `explore`, and Q = `top` x best + (1 - `top`) x mean reward of the child's subtree.
      For a subtree in which nothing works, Q = the parent's reward x `hope`^(failures): a failed child is worth its fix.
4. A failed node is debugged, the root seeded, any other improved. Every `combine`-th improvement borrows from the fastest
   candidate of another seed, if both are within `near` of the fastest one that was written (`choice.combination`).

Dead ends: a child is closed when
   - nothing in its subtree works, after the failure and `tries` fixes of it, or at once where it is void; or
   - it works, and all of `dead` or more below it failed; or
   - `patience` or more nodes of its subtree leave it slower than its parent (never for a seed).
Closing compares counts, so a result that comes late opens the branch again. The root is never closed: where all is closed,
the choice is a seed. KernelPro saw a task whose first working kernel came after 43 failures in a row.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, combination, constant, expand
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class Mcts:
    name: ClassVar[str] = "mcts"
    """Constants: from our simulator (benchmarks/policies.py --tune mcts); its result page says what each part is worth."""
    seeds: int = constant(12, 1, 1000)
    """KernelPro has 15. The family of the seed decides how far a kernel can go."""
    fresh: int = constant(6, 1, 100000)
    plateau: int = constant(20, 1, 100000)
    """Seldom speaks at these budgets, because `fresh` comes first."""
    width: float = constant(0.3, 0.1, 100.0)
    alpha: float = constant(0.5, 0.0, 1.0)
    """With this width: one live child until the subtree has 45 nodes. At budgets of 30 to 75 depth is worth more than
    breadth, and siblings come from the closing of dead ends."""
    bonus: float = constant(1.0, 1.0, 10.0)
    """1: at these widths more children for a node that beat its parent gained nothing; failed nodes still have but one."""
    explore: float = constant(0.1, 0.0, 10.0)
    top: float = constant(0.8, 0.0, 1.0)
    """The search wants the best kernel, not the best average."""
    hope: float = constant(0.5, 0.0, 1.0)
    loss: float = constant(0.5, 0.0, 10.0)
    tries: int = constant(1, 0, 1000)
    dead: int = constant(12, 1, 100000)
    patience: int = constant(3, 1, 100000)
    """A step that made it slower has two more to pay off: some methods pay only together."""
    combine: int = constant(8, 0, 100000)
    """0: never. Not tuned: in our simulator, which cannot tell what working code is worth, 3 to 12 are within 2 % of never."""
    near: float = constant(1.5, 1.0, 100.0)
    """Times as long as the fastest. A guess: what one transformation may make up for."""

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        root = tree.nodes[0]
        if len(root.children) < self.seeds or self._stale(tree):
            return SEED
        node = root
        while True:
            live = [child for id in node.children if not self.closed(child := tree.nodes[id], node)]
            settled = [child for child in live if child.state != "pending"]
            if not settled or len(live) < self.allowed(node, tree):
                return combination(tree, node, self.combine, self.near) or expand(node)
            log_visits = math.log(node.visits + node.pending)
            scores = [self._score(child, node, log_visits, root.best) for child in settled]
            node = settled[scores.index(max(scores))]

    def allowed(self, node: TreeNode, tree: Tree) -> int:
        """How many live children the node may have: the widening law."""
        if node.state != "ok":
            return 1
        width = self.width
        if node.parent is not None and node.reward > tree.nodes[node.parent].reward:
            width *= self.bonus
        return max(1, math.floor(width * math.pow(node.visits + node.pending, self.alpha)))

    def closed(self, child: TreeNode, parent: TreeNode) -> bool:
        """Is the branch that starts at the child a dead end?"""
        size = child.visits + child.pending
        if child.state == "pending":
            return False
        if child.working == 0:
            return child.state == "void" or size > self.tries
        if child.working == 1 and child.state == "ok" and size > self.dead:
            return True
        return parent.id != 0 and size >= self.patience and child.best < parent.reward

    def _stale(self, tree: Tree) -> bool:
        """Is a fresh seed due?"""
        newest = len(tree) - 1
        since_seed = newest - tree.nodes[0].children[-1]
        leaders = tree.leaders(1)
        since_best = newest - (leaders[0].id if leaders else 0)
        due = since_seed >= self.fresh or min(since_seed, since_best) >= self.plateau
        return due and since_seed >= len(tree.nodes[0].children) // 2

    def _score(self, child: TreeNode, parent: TreeNode, log_visits: float, best: float) -> float:
        size = child.visits + child.pending
        if child.working:
            value = self.top * child.best + (1 - self.top) * child.total / child.visits
        else:
            value = parent.reward * self.hope**child.failures
        return value / best + self.explore * math.sqrt(log_visits / size) - self.loss * child.pending / size
