"""Authors as the command line names them."""

from __future__ import annotations

from pathlib import Path

from kernelpro.authors.author import Author
from kernelpro.authors.files import Files
from kernelpro.records import BadInput


def author(spec: str) -> Author:
    """`files:DIR`: the candidates in a folder."""
    kind, _, rest = spec.partition(":")
    if kind == "files" and rest:
        return Files(Path(rest))
    raise BadInput(f"--author {spec}: not an author; there is files:DIR")
