"""Answers are Markdown, and code stands in fenced blocks: this finds them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelpro.llm.question import Malformed

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*(.*)")
_ALIASES = {"py": "python", "python3": "python", "cu": "cuda", "c++": "cpp", "cxx": "cpp", "jsonc": "json"}
"""What models write for the same language."""


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    language: str
    """First word of the info string, in lower case, by its usual name."""
    info: str
    """The rest of the info string."""
    body: str
    line: int
    """Where it opens; the first line of the text is 1."""


def fences(text: str) -> list[Fence]:
    """All fenced blocks. A block ends with a fence at least as long as its first; raises Malformed if one never does."""
    found: list[Fence] = []
    mark, info, start, body = "", "", 0, list[str]()
    for number, line in enumerate(_lines(text), 1):
        match = _FENCE.fullmatch(line)
        if mark:
            if match and match[1].startswith(mark) and not match[2].strip():
                first, _, rest = info.partition(" ")
                language = _ALIASES.get(first.lower(), first.lower())
                found.append(Fence(language, rest.strip(), "".join(part + "\n" for part in body), start))
                mark = ""
            else:
                body.append(line)
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            mark, info, start, body = match[1], match[2].strip(), number, []
    if mark:
        raise Malformed(
            f"the block that opens in line {start} with {mark}{info} is never closed: was the answer cut off?"
        )
    return found


def _lines(text: str) -> list[str]:
    """Split at line ends alone: form feeds and the like belong to the source they stand in."""
    return text.replace("\r\n", "\n").split("\n")
