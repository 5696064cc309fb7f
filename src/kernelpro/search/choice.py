"""What a policy answers, and how its constants are declared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelpro.search.tree import Action, Node, Tree


@dataclass(frozen=True)
class Choice:
    """Where the tree grows next.

    seed: a fresh design, child of the root; improve: child of a node that works; debug: a fix, child of a failed node.
    """

    parent: int
    action: Action


class Policy(Protocol):
    """A pure function of the tree and the random numbers: no state of its own, so a killed run goes on as it would have."""

    @property
    def name(self) -> str: ...

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """Never a pending or void parent, and always an answer: no policy gives a task up."""
        ...


SEED = Choice(0, "seed")


def grow(node: Node) -> Choice:
    """The choice that expands a settled node by what it is: a seed, an improvement or a fix. A void one is never grown."""
    if node.id == 0:
        return SEED
    return Choice(node.id, "improve" if node.state == "ok" else "debug")


def constant(default: float, low: float, high: float) -> Any:
    """A constant of a policy, with the range that `make` holds it to; whole where the default is an int."""
    return field(default=default, metadata={"low": low, "high": high})
