"""A task whose results are drawn from a recorded run.

1. Each recorded candidate becomes an example: its action, the reward of its nearest working ancestor (the
   root counts), and its outcome: failed, or its log-time relative to that ancestor.
2. An attempt takes the NEIGHBOURS examples of the same action whose ancestors' rewards are nearest, draws
   one uniformly, and applies it to the ancestor that the simulated tree has. An action that was never
   recorded fails; a combination then counts as an improvement.
3. No time falls below the floor.

Gains shrink towards the floor as they did in the recorded run, and failures and fixes are as frequent. The
identity of methods is lost: the same gain can be drawn twice in a chain.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from pathlib import Path
from typing import Any

from kernelpro.records import BadInput
from kernelpro.search.tree import Tree, TreeNode
from simulation.simulator import SimulatedResult

NEIGHBOURS = 8
"""A run has about 75 candidates, 20-40 of an action: enough neighbours to vary, few enough to stay near."""


class RecordedLandscape:
    """Built from {"baseline_ms", "floor_ms", "nodes": [{"id", "parent", "action", "ms"}, ...]}.

    `ms` is null if the candidate failed; a combination also has its `donor`. The root (id 0) may be left out.
    Parents come before their children; ids are integers in any numbering.
    """

    def __init__(self, recorded: dict[str, Any]) -> None:
        try:
            self.baseline_ms, self.floor_ms = float(recorded["baseline_ms"]), float(recorded["floor_ms"])
            tree = Tree(self.baseline_ms, self.floor_ms)
            ids = {0: 0}
            for entry in recorded["nodes"]:
                if entry["id"] != 0:
                    donor = ids[entry["donor"]] if entry.get("donor") else None
                    node = tree.add(ids[entry["parent"]], entry["action"], donor)
                    tree.settle(node.id, entry["ms"])
                    ids[entry["id"]] = node.id
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"the recorded run cannot be replayed: {type(error).__name__}: {error}") from None
        examples: dict[str, list[tuple[float, float | None]]] = {
            "seed": [],
            "improve": [],
            "debug": [],
            "combine": [],
        }
        for node in tree.nodes[1:]:
            ancestor = _working_ancestor(tree, node)
            assert ancestor.ms is not None
            examples[node.action].append(
                (ancestor.reward, None if node.ms is None else math.log(node.ms / ancestor.ms))
            )
        if not examples["seed"]:
            raise BadInput("the recorded run cannot be replayed: it has no seed candidate")
        self._examples = {
            action: sorted(pairs, key=lambda pair: pair[0]) for action, pairs in examples.items()
        }

    @classmethod
    def from_file(cls, path: Path) -> RecordedLandscape:
        """Read a recorded run from a JSON file."""
        try:
            return cls(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, json.JSONDecodeError) as error:
            raise BadInput(f"the recorded run cannot be read: {path} ({error})") from None

    def attempt(self, tree: Tree, node: TreeNode, hidden: list[Any], rng: random.Random) -> SimulatedResult:
        """Draw the result of a pending node from similar recorded ones."""
        examples = self._examples[node.action] or (
            self._examples["improve"] if node.action == "combine" else []
        )
        if not examples:
            return SimulatedResult(None, None, None)
        ancestor = _working_ancestor(tree, node)
        low = high = bisect_left(examples, ancestor.reward, key=lambda pair: pair[0])
        while high - low < min(NEIGHBOURS, len(examples)):
            below = ancestor.reward - examples[low - 1][0] if low else math.inf
            beyond = examples[high][0] - ancestor.reward if high < len(examples) else math.inf
            low, high = (low - 1, high) if below < beyond else (low, high + 1)
        log_ratio = examples[rng.randrange(low, high)][1]
        if log_ratio is None:
            return SimulatedResult(None, None, None)
        assert ancestor.ms is not None
        ms = max(self.floor_ms, ancestor.ms * math.exp(log_ratio))
        return SimulatedResult(ms, ms, None)


def _working_ancestor(tree: Tree, node: TreeNode) -> TreeNode:
    """The nearest ancestor that works."""
    return next(
        ancestor for ancestor in tree.path(node.id) if ancestor.id != node.id and ancestor.state == "ok"
    )
