"""Finds the fenced code blocks of a Markdown answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelpro.llm.question import Malformed

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*(.*)")
_ALIASES = {"py": "python", "python3": "python", "cu": "cuda", "c++": "cpp", "cxx": "cpp", "jsonc": "json"}
"""Other spellings of a language."""


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block."""

    language: str
    """The first word of the info string, normalized and in lower case."""
    info: str
    """The rest of the info string."""
    body: str
    line: int
    """Line of the opening fence, counted from 1."""


def fenced_blocks(text: str) -> list[FencedBlock]:
    """Return all fenced blocks. Raises Malformed if one is not closed.

    The closing fence of a block is at least as long as its opening fence.
    """
    blocks: list[FencedBlock] = []
    mark, info, start, body = "", "", 0, list[str]()
    for number, line in enumerate(_lines(text), 1):
        match = _FENCE.fullmatch(line)
        if mark:
            if match and match[1].startswith(mark) and not match[2].strip():
                first, _, rest = info.partition(" ")
                language = _ALIASES.get(first.lower(), first.lower())
                blocks.append(
                    FencedBlock(language, rest.strip(), "".join(part + "\n" for part in body), start)
                )
                mark = ""
            else:
                body.append(line)
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            mark, info, start, body = match[1], match[2].strip(), number, []
    if mark:
        raise Malformed(
            f"the block that opens in line {start} with {mark}{info} is never closed: was the answer cut off?"
        )
    return blocks


def _lines(text: str) -> list[str]:
    """Split at line ends only. `str.splitlines` would also split at form feeds and other characters."""
    return text.replace("\r\n", "\n").split("\n")
