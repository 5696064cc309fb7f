"""Answers are Markdown: code in fenced blocks, sections under headings. This finds both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelpro.llm.question import Malformed

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t#]*")
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
        raise Malformed(f"the block that opens in line {start} with {mark}{info} is never closed: was the answer cut off?")
    return found


def sections(text: str) -> dict[str, str]:
    """Bodies by heading, as `plain` writes headings; what stands before the first is under "".

    Raises Malformed on a heading given twice. A heading of a deeper level than the first belongs to the body it stands in.
    Headings in fenced blocks are not headings.
    """
    found: dict[str, list[str]] = {"": []}
    name, level, mark = "", 0, ""
    for line in _lines(text):
        fence = _FENCE.fullmatch(line)
        if mark:
            mark = "" if fence and fence[1].startswith(mark) and not fence[2].strip() else mark
        elif fence:
            mark = fence[1]
        elif (heading := _HEADING.fullmatch(line)) and (not level or len(heading[1]) <= level):
            name, level = plain(heading[2]), level or len(heading[1])
            if name in found:
                raise Malformed(f"the heading {heading[2]!r} is there twice")
            found[name] = []
            continue
        found[name].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def _lines(text: str) -> list[str]:
    """Split at line ends alone: form feeds and the like belong to the source they stand in."""
    return text.replace("\r\n", "\n").split("\n")


def plain(heading: str) -> str:
    """A heading as it is compared: without emphasis, number, colon and case."""
    return re.sub(r"^[\d.)\s]+|[*_`:]", "", heading).strip().lower()
