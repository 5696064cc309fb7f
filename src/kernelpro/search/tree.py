"""The tree of candidates: parents, results, and the statistics of each subtree that policies need.

Node 0 is the reference, at the time of the best baseline. Every other node is added pending and settled once:
with its measured time, as failed, or as void. A void node leaves nothing to fix: a duplicate, or an author
without an idea.

1. `add` appends the node and counts it as pending on the path to the root.
2. `settle` moves it from pending to visits on that path, and adds its reward; O(depth).
3. The ranking by time and the leaves are sorted lists, searched by bisection. They and all sums depend on
   what is in the tree, not on the order in which results arrived, so that a tree rebuilt from a store gives
   the same choices.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kernelpro.records import Action

State = Literal["pending", "failed", "void", "ok"]

AT_BASELINE = 0.2
"""Reward of a kernel exactly as fast as the baseline. A failure is 0. The range between is for kernels that
work but are slower, as most first kernels are (no single-shot model reached 1x on KernelBench-Verified)."""
MIN_SPAN = math.log(1.25)
"""Smallest log-distance from baseline to floor: with less, 1-2 % of timing noise would look like progress."""
UNKNOWN_SPAN = math.log(4.0)
"""The log-distance if no floor is known: the KernelPro paper's geomeans on KernelBench are 2.4x, 4.7x,
5.3x."""
_GRAIN = 2.0**20
"""Rewards are multiples of 2^-20: sums of up to 2^32 of them are exact, hence the same in any order."""


@dataclass
class TreeNode:
    """One candidate, and the statistics of its subtree, itself included."""

    id: int
    parent: int | None
    action: Action | Literal["root"]
    state: State = "pending"
    ms: float | None = None
    """Measured time of an ok node."""
    depth: int = 0
    seed: int = 0
    """The id of the seed that it descends from or is; 0 for the root."""
    donor: int | None = None
    """The node that a combination borrows from. The combination is not part of its subtree."""
    children: list[int] = field(default_factory=list)
    reward: float = 0.0
    """Its own reward; 0 while pending and if failed."""
    visits: int = 0
    """Settled nodes in the subtree."""
    pending: int = 0
    """Pending nodes in the subtree."""
    failures: int = 0
    """Failed and void nodes in the subtree."""
    total: float = 0.0
    """Sum of the rewards in the subtree."""
    best: float = 0.0
    """Best reward in the subtree."""

    @property
    def working(self) -> int:
        """How many nodes in the subtree are ok."""
        return self.visits - self.failures


class Tree:
    """All candidates of a run."""

    def __init__(self, baseline_ms: float, floor_ms: float, compiler_seeds: int = 0, budget: int = 0) -> None:
        """A floor of 0 means that none is known.

        `compiler_seeds`: how many of the first seeds are compilers' code. `budget`: how many candidates
        authors may write; 0: unknown.
        """
        if not (math.isfinite(baseline_ms) and baseline_ms > 0):
            raise ValueError(f"baseline_ms must be a positive time, not {baseline_ms}")
        self.baseline_ms = baseline_ms
        self.floor_ms = floor_ms
        self.compiler_seeds = compiler_seeds
        self.budget = budget
        has_floor = math.isfinite(floor_ms) and floor_ms > 0
        self._span = max(MIN_SPAN, math.log(baseline_ms / floor_ms)) if has_floor else UNKNOWN_SPAN
        reward = self.reward(baseline_ms)
        root = TreeNode(
            0, None, "root", "ok", baseline_ms, reward=reward, visits=1, total=reward, best=reward
        )
        self.nodes: list[TreeNode] = [root]
        self._ranking: list[tuple[float, int]] = []
        self._leaves: list[int] = []

    def __len__(self) -> int:
        """The number of nodes, the root included."""
        return len(self.nodes)

    def reward(self, ms: float) -> float:
        """Log reward: with x = log(baseline / ms) / log(baseline / floor), so 0 at the baseline and 1 at the
        floor,

            0 <= x <= 1   B + (1 - B) x                        B = AT_BASELINE
            x < 0         B exp(x (1 - B) / B)                 slower than the baseline: above 0, a failure
            x > 1         B + (1 - B) (2 - 1 / x)              the floor was wrong: saturates below 2 - B

        Strictly monotone and smooth. If the floor is at or above the baseline, the distance counts as 1.25x.
        """
        x = math.log(self.baseline_ms / ms) / self._span
        if x < 0:
            value = AT_BASELINE * math.exp(x * (1 - AT_BASELINE) / AT_BASELINE)
        else:
            value = AT_BASELINE + (1 - AT_BASELINE) * (x if x <= 1 else 2 - 1 / x)
        return max(1.0, round(value * _GRAIN)) / _GRAIN

    def add(self, parent: int, action: Action, donor: int | None = None) -> TreeNode:
        """Add a pending node below a settled one. `donor`: the node that a combination borrows from."""
        parent_node = self.nodes[parent]
        if parent_node.state == "pending":
            raise ValueError(f"node {parent} is pending and cannot be a parent")
        fits = {
            "seed": parent == 0,
            "improve": parent_node.state == "ok",
            "debug": parent_node.state in ("failed", "void"),
            "combine": parent_node.state == "ok" and parent > 0,
        }
        if not fits.get(action, False) or (action == "combine") != (donor is not None):
            raise ValueError(
                f"action {action!r} does not fit node {parent} ({parent_node.action}, {parent_node.state})"
            )
        if donor is not None and (
            self.nodes[donor].state != "ok" or self.nodes[donor].seed in (0, parent_node.seed)
        ):
            raise ValueError(
                f"node {parent} cannot be combined with node {donor}: "
                "the donor must work, and come from another seed"
            )
        id = len(self.nodes)
        node = TreeNode(
            id, parent, action, depth=parent_node.depth + 1, seed=parent_node.seed or id, donor=donor
        )
        self.nodes.append(node)
        if parent and not parent_node.children and parent_node.state != "void":
            self._leaves.pop(bisect_left(self._leaves, parent))
        parent_node.children.append(node.id)
        for ancestor in self.path(node.id):
            ancestor.pending += 1
        return node

    def settle(self, id: int, ms: float | None, void: bool = False) -> None:
        """Set a node's result: its time, or None if it failed (wrong, did not build, crashed, ...) or is
        void."""
        node = self.nodes[id]
        if node.state != "pending":
            raise ValueError(f"node {id} is settled already ({node.state})")
        if ms is not None and not (math.isfinite(ms) and ms > 0):
            raise ValueError(f"ms must be a positive time or None, not {ms}")
        if void and ms is not None:
            raise ValueError(f"node {id} cannot be void and have a time")
        node.state, node.ms = "void" if void else "failed" if ms is None else "ok", ms
        if ms is not None:
            node.reward = self.reward(ms)
            insort(self._ranking, (ms, id))
        if not void:
            insort(self._leaves, id)
        for ancestor in self.path(id):
            ancestor.pending -= 1
            ancestor.visits += 1
            ancestor.failures += ms is None
            ancestor.total += node.reward
            ancestor.best = max(ancestor.best, node.reward)

    def path(self, id: int) -> Iterator[TreeNode]:
        """The node, its parent, ... the root."""
        at: int | None = id
        while at is not None:
            node = self.nodes[at]
            yield node
            at = node.parent

    def best(self) -> TreeNode:
        """The fastest node; the root if no candidate beats the baseline."""
        if self._ranking and self._ranking[0][0] < self.baseline_ms:
            return self.nodes[self._ranking[0][1]]
        return self.nodes[0]

    def ranked(self) -> Iterator[TreeNode]:
        """Working candidates, fastest first, without the root."""
        return (self.nodes[id] for _, id in self._ranking)

    def leaders(self, count: int) -> list[TreeNode]:
        """The fastest working candidates, at most `count`."""
        return [self.nodes[id] for _, id in self._ranking[:count]]

    @property
    def leaves(self) -> list[int]:
        """Ids of settled, expandable candidates without children, in order. Do not modify the list."""
        return self._leaves
