"""Greedy: always the best node.

1. The first `seeds` candidates are seeds.
2. Take the fastest working candidate; the root if there is none.
3. If its last settled child failed and has no fix yet: debug that child, once.
4. Otherwise expand the node (at the root: another seed).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice, constant, expand
from kernelpro.search.tree import Tree


@dataclass(frozen=True)
class Greedy:
    """Always expands the best node."""

    name: ClassVar[str] = "greedy"
    seeds: int = constant(1, 1, 1000)
    """The plain form, as a baseline for other policies. In the simulator, 12 seeds do best."""

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """See the module's docstring."""
        if len(tree.nodes[0].children) < self.seeds:
            return SEED
        leaders = tree.leaders(1)
        node = leaders[0] if leaders else tree.nodes[0]
        for id in reversed(node.children):
            child = tree.nodes[id]
            if child.state != "pending":
                if child.state == "failed" and not child.children:
                    return expand(child)
                break
        return expand(node)
