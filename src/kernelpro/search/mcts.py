"""Monte Carlo tree search with progressive widening, as in the KernelPro paper (arXiv 2606.26453), most of
whose constants are unknown.

A candidate is built, verified and timed when it is added, so expansion is the evaluation and there are no
rollouts.

1. Seeds first: until authors wrote `seeds` designs, a seed. By default as many as fit the budget:
   1.25 sqrt(candidates), so that small budgets begin to improve the best design early.
2. Fresh seeds: when `seed_interval` candidates were added since the last seed, and at least half as many as
   there are seeds. Every choice looks at all children of the root; their number therefore grows with the
   square root of the tree.
3. Otherwise descend from the root. At a node with n settled and pending nodes in its subtree:
   a. Its live children are the pending ones and those that are not closed (below).
   b. Widening: it may have max(1, floor(`width` n^`alpha`)) live children; a failed node may have one. With
      fewer, or with none to descend to: expand it.
   c. Otherwise go to the settled live child with the highest
          Q / B + `exploration` sqrt(log(n) / m) - `virtual_loss` p / m
      where m is the number of settled and pending nodes of the child's subtree, p that of the pending ones, B
      the best reward of the tree, and Q = w x best + (1 - w) x mean reward of the child's subtree, w =
      `best_weight`. For a subtree in which nothing works, Q = the parent's reward x
      `fix_discount`^(failures): a failed child is worth what its fix may reach.
4. A failed node is debugged, the root seeded, any other node improved. Every `combine_interval`-th
   improvement borrows from the fastest candidate of another seed, if both take at most `combine_ratio` times
   as long as the fastest candidate that an author wrote (`choice.combination`).

Dead ends: a child is closed when
   - nothing in its subtree works, after the failure and `max_fixes` fixes of it, or at once if it is void; or
   - it works, and all of its `max_failures` or more descendants failed; or
   - `patience` or more nodes of its subtree leave it slower than its parent (never for a seed). Closing
compares counts, so a late result opens the branch again. The root is never closed: if all else is closed, the
choice is a seed. The paper reports a task whose first working kernel came after 43 failures in a row.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, combination, constant, expand
from kernelpro.search.tree import Tree, TreeNode

_SEEDS_PER_ROOT = 1.25
"""Seeds per square root of the budget (benchmarks/results/policies.md)."""
_USUAL_BUDGET = 75


@dataclass(frozen=True)
class Mcts:
    """The default policy."""

    name: ClassVar[str] = "mcts"
    """The constants are tuned on simulated tasks (benchmarks/policies.py --tune mcts);
    benchmarks/results/policies.md shows what each part gains."""
    seeds: int = constant(0, 0, 1000)
    """0: by the budget. The paper uses 15 for 75 candidates. The design of the seed decides how far a kernel
    can go, but a budget of 8 candidates does best with 4 seeds, one of 20 with 6, one of 75 with 10."""
    seed_interval: int = constant(6, 1, 100000)
    width: float = constant(0.3, 0.1, 100.0)
    alpha: float = constant(0.5, 0.0, 1.0)
    """With this width, a node has one live child until its subtree has 45 nodes. At budgets of 30 to 75
    candidates depth gains more than breadth, and siblings come from the closing of dead ends."""
    exploration: float = constant(0.1, 0.0, 10.0)
    best_weight: float = constant(0.8, 0.0, 1.0)
    """The search wants the best kernel, not the best average."""
    fix_discount: float = constant(0.5, 0.0, 1.0)
    virtual_loss: float = constant(0.5, 0.0, 10.0)
    max_fixes: int = constant(1, 0, 1000)
    max_failures: int = constant(12, 1, 100000)
    patience: int = constant(3, 1, 100000)
    """After a step that made the kernel slower, two more may follow: some methods pay off only together."""
    combine_interval: int = constant(8, 0, 100000)
    """0: never. Not tuned: the simulator does not model the value of working code; there, 3 to 12 are within
    2 % of never."""
    combine_ratio: float = constant(1.5, 1.0, 100.0)
    """Not tuned: an estimate of what one transformation can make up for."""

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """See the module's docstring."""
        root = tree.nodes[0]
        if len(root.children) - tree.compiler_seeds < self.first_seeds(tree.budget) or self._seed_due(tree):
            return SEED
        node = root
        while True:
            live = [child for id in node.children if not self.is_closed(child := tree.nodes[id], node)]
            settled = [child for child in live if child.state != "pending"]
            if not settled or len(live) < self.max_children(node):
                return combination(tree, node, self.combine_interval, self.combine_ratio) or expand(node)
            log_visits = math.log(node.visits + node.pending)
            scores = [self._score(child, node, log_visits, root.best) for child in settled]
            node = settled[scores.index(max(scores))]

    def first_seeds(self, budget: int) -> int:
        """How many designs authors write before anything is improved. A budget of 0 is unknown."""
        return self.seeds or max(1, round(_SEEDS_PER_ROOT * math.sqrt(budget or _USUAL_BUDGET)))

    def max_children(self, node: TreeNode) -> int:
        """How many live children the node may have: the widening law."""
        if node.state != "ok":
            return 1
        return max(1, math.floor(self.width * math.pow(node.visits + node.pending, self.alpha)))

    def is_closed(self, child: TreeNode, parent: TreeNode) -> bool:
        """Whether the branch that starts at the child is a dead end."""
        size = child.visits + child.pending
        if child.state == "pending":
            return False
        if child.working == 0:
            return child.state == "void" or size > self.max_fixes
        if child.working == 1 and child.state == "ok" and size > self.max_failures:
            return True
        return parent.id != 0 and size >= self.patience and child.best < parent.reward

    def _seed_due(self, tree: Tree) -> bool:
        """Whether it is time for a fresh seed."""
        seeds = tree.nodes[0].children
        since_seed = len(tree) - 1 - seeds[-1]
        return since_seed >= max(self.seed_interval, len(seeds) // 2)

    def _score(self, child: TreeNode, parent: TreeNode, log_visits: float, best: float) -> float:
        size = child.visits + child.pending
        if child.working:
            value = self.best_weight * child.best + (1 - self.best_weight) * child.total / child.visits
        else:
            value = parent.reward * self.fix_discount**child.failures
        return (
            value / best
            + self.exploration * math.sqrt(log_visits / size)
            - self.virtual_loss * child.pending / size
        )
