"""Best-of-n: independent samples. Every candidate is a fresh seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice
from kernelpro.search.tree import Tree


@dataclass(frozen=True)
class BestOfN:
    """Always a seed."""

    name: ClassVar[str] = "best-of-n"

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        """A seed."""
        return SEED
