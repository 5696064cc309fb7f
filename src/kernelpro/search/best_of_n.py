"""Best-of-n: independent samples. Every candidate is a fresh seed; nothing learns from anything."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from kernelpro.search.choice import SEED, Choice
from kernelpro.search.tree import Tree


@dataclass(frozen=True)
class BestOfN:
    name: ClassVar[str] = "best-of-n"

    def choose(self, tree: Tree, rng: random.Random) -> Choice:
        return SEED
