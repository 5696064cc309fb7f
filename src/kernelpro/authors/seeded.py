"""Seeds before anything else: the first fresh designs are what compilers made of the task; an author writes the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelpro.authors.author import Assignment, Author, Draft


class Seeded:
    """The first steps are the seeds, in order and at no cost. The author does not see that they were."""

    def __init__(self, author: Author, seeds: list[dict[str, Any]]):
        self.name, self._author, self._seeds = author.name, author, seeds

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.turn < len(self._seeds):
            seed = self._seeds[assignment.turn]
            return Draft(seed["source"], plan=f"{seed['name']}'s own code", author=seed["name"])
        earlier = len(self._seeds) if assignment.action == "seed" else 0
        own = replace(
            assignment, turn=assignment.turn - len(self._seeds), attempt=assignment.attempt - earlier
        )
        return await self._author.write(own)
