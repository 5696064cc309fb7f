"""Markdown pages as tests see them: fenced blocks in order, with what a comment above says about each.

    <!-- not run: gpu -->      the block needs a GPU (or: key, network, cluster, time): it is parsed, not executed
    <!-- file: my_norm.py -->  the block is the content of a file, which later blocks of the page use

`bash` blocks hold commands, one a line (`\\` continues a line, `#` begins a comment). In `console` blocks, lines that begin
with `$ ` are commands and the others are output. `python` blocks of a page share one namespace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NOT_RUN = ("gpu", "key", "network", "cluster", "time")
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<directive>[^\n]*?) -->\n+ *)?```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    line: int
    not_run: str = ""
    """Why the block is only parsed; empty: it is executed."""
    file: str = ""
    """The name of the file whose content it is."""

    @property
    def commands(self) -> list[str]:
        """The shell commands of a bash or console block."""
        lines = self.body.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line[2:].strip() for line in lines if line.startswith("$ ")]
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page. Raises ValueError for a comment that no rule knows."""
    text = path.read_text()
    result = []
    for match in _BLOCK.finditer(text):
        line = text[: match.start("language")].count("\n") + 1
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        key, _, value = (match["directive"] or "").partition(": ")
        if key == "not run" and value in NOT_RUN:
            result.append(Block(match["language"], body, line, not_run=value))
        elif key == "file" and value:
            result.append(Block(match["language"], body, line, file=value))
        elif key in ("not run", "file"):
            raise ValueError(f"{path.name}:{line}: cannot read <!-- {match['directive']} -->")
        else:
            result.append(Block(match["language"], body, line))
    return result
