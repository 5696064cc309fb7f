"""`files:DIR`: candidates that somebody else wrote, offered one after the other as fresh designs."""

from __future__ import annotations

from pathlib import Path

from kernelpro.authors.author import Assignment, Draft, OutOfIdeas
from kernelpro.records import BadInput, read_source


class Files:
    def __init__(self, folder: Path):
        self._paths = sorted(folder.glob("*.py"))
        if not self._paths:
            raise BadInput(f"--author files:{folder}: no Python file in that folder")
        self.name = f"files:{folder}"

    async def write(self, assignment: Assignment) -> Draft:
        """The n-th file for the n-th turn: the same whenever it is asked."""
        if assignment.turn >= len(self._paths):
            raise OutOfIdeas(f"all {len(self._paths)} files have been offered")
        path = self._paths[assignment.turn]
        return Draft(read_source(path, "candidate"), plan=f"as in {path.name}", author=path.name)
