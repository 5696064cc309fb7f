"""An author whose first designs are torch.compile's own code for the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernelpro.authors.author import Assignment, Author, Draft
from kernelpro.records import BaselineSeed


class SeededAuthor(Author):
    """Returns the seeds in order and at no cost, then asks the wrapped author.

    The wrapped author's `turn` and `attempt` do not count the seeds.
    """

    def __init__(self, author: Author, seeds: Sequence[BaselineSeed]):
        self.name, self._author, self._seeds = author.name, author, seeds

    async def write(self, assignment: Assignment) -> Draft:
        """Return the next seed, or the wrapped author's draft."""
        if assignment.turn < len(self._seeds):
            seed = self._seeds[assignment.turn]
            return Draft(seed.source, plan=f"{seed.name}'s own code", author=seed.name)
        earlier = len(self._seeds) if assignment.action == "seed" else 0
        own = replace(
            assignment, turn=assignment.turn - len(self._seeds), attempt=assignment.attempt - earlier
        )
        return await self._author.write(own)
