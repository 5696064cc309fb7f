"""`--author files:DIR`: existing candidates, offered one after another as new designs."""

from __future__ import annotations

from pathlib import Path

from kernelpro.authors.author import Assignment, Author, Draft, NoMoreProposals
from kernelpro.records import BadInput, read_source


class FilesAuthor(Author):
    """Offers the Python files of a folder in alphabetical order."""

    def __init__(self, folder: Path):
        self._paths = sorted(folder.glob("*.py"))
        if not self._paths:
            raise BadInput(f"--author files:{folder}: no Python file in that folder")
        self.name = f"files:{folder}"

    async def write(self, assignment: Assignment) -> Draft:
        """Return the n-th file for the n-th turn."""
        if assignment.turn >= len(self._paths):
            raise NoMoreProposals("every file has been tried")
        path = self._paths[assignment.turn]
        return Draft(read_source(path, "candidate"), plan=f"as in {path.name}", author=path.name)
