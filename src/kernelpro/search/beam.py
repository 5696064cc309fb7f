"""Beam search: the `width` best nodes advance together, round by round.

1. The first `seeds` candidates are seeds (ids 1 to `seeds`: round 0).
2. A later round has width x branch candidates. Its members are the `width` fastest nodes older than the
   round.
3. The next candidate goes to the member with the fewest candidates in this round; ties go to the faster
   member.
4. If that member's last settled child failed and has no fix yet, the candidate is a fix of that child, else
   an improvement of the member.
5. If nothing works yet: a fix of the newest failed seed without one, else a seed.

The number of rounds follows from the budget: (budget - seeds) / (width x branch).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, constant, expand
from kernelpro.search.tree import Tree, TreeNode


@dataclass(frozen=True)
class Beam:
    """Constants from benchmarks/policies.py --tune beam, where narrow beams did better. A width of 1 is
    greedy."""

    name: ClassVar[str] = "beam"
    seeds: int = constant(12, 1, 1000)
    width: int = constant(3, 1, 1000)
    branch: int = constant(1, 1, 1000)

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """See the module's docstring."""
        if len(tree.nodes[0].children) < self.seeds:
            return SEED
        size = self.width * self.branch
        start = len(tree) - max(0, len(tree) - 1 - self.seeds) % size
        members = [node for node in tree.leaders(self.width + size) if node.id < start][: self.width]
        if not members:
            members = tree.leaders(self.width) or [tree.nodes[0]]
        member = min(members, key=lambda node: self._tries(tree, node, start))
        last = next(
            (tree.nodes[id] for id in reversed(member.children) if tree.nodes[id].state != "pending"), None
        )
        return expand(last if last is not None and last.state == "failed" and not last.children else member)

    @staticmethod
    def _tries(tree: Tree, member: TreeNode, start: int) -> int:
        """Candidates of this round below the member: its children, and the fixes of its children."""
        tries = 0
        for id in reversed(member.children):
            child = tree.nodes[id]
            tries += child.id >= start
            tries += sum(fix >= start for fix in child.children) if child.state == "failed" else 0
            if child.id < start and not child.children:
                break
        return tries
