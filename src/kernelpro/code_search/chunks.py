"""Splits a file into chunks of about 60 lines. The index stores chunks, and a search returns them.

1. Leave out a licence at the top of the file. It is the same in all files and would match every query that
   shares a word with it.
2. Split the file before each definition and the comment above it.
3. Split pieces of more than 60 lines at a blank line near line 50.
4. Join neighbouring pieces as long as they fit into 60 lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelpro.code_search.scanner import Definition

MAX_CHUNK_LINES = 60
"""About one screen: small enough for one topic, large enough to be understood alone."""
_SPLIT_FROM = 50
_MIN_LINES = 8
"""Smaller pieces, such as closing braces, stay with the piece above them."""
_MINOR_KINDS = ("alias", "declaration", "macro")
"""Kinds of definitions that neither start a chunk nor enclose one."""
_COMMENT = re.compile(r"\s*(//|/\*|\*|#(?!\s*(?:if|el|end|def|inc|pragma|undef))|@|template\b)")
_MAX_LICENCE_LINES = 100
_LICENCE = re.compile(r"copyright|licen[sc]e|redistribut", re.IGNORECASE)


@dataclass(frozen=True)
class Chunk:
    """Lines `start` to `end` of a file (from 1, inclusive).

    `symbol`: the definition that the chunk starts with or lies in. `names`: all definitions in it.
    """

    start: int
    end: int
    kind: str
    symbol: str
    names: tuple[str, ...]


def chunks(lines: Sequence[str], found: Sequence[Definition]) -> Iterator[Chunk]:
    """Yield the chunks of a file."""
    first = _after_licence(lines)
    starts = {_with_comment(lines, d.start - 1) for d in found if d.kind not in _MINOR_KINDS}
    borders = sorted({first} | {row for row in starts if row > first})
    pieces = [
        piece
        for a, b in zip(borders, [*borders[1:], len(lines)], strict=True)
        for piece in _split(lines, a, b)
    ]
    at = 0
    opening: list[Definition] = []
    """Definitions that started before the end of the last chunk and have not ended, outermost first."""
    for start, end in _join(pieces):
        if not any(line.strip() for line in lines[start:end]):
            continue
        opening = [d for d in opening if d.end > start]
        outer = list(opening)
        starting = []
        while at < len(found) and found[at].start <= end:
            starting.append(found[at])
            at += 1
        larger = [d for d in starting if d.kind not in _MINOR_KINDS]
        opening += larger
        main = min(larger or starting, key=lambda d: d.depth, default=None)
        about = outer[-1] if outer and (main is None or main.depth > outer[-1].depth) else main
        names = dict.fromkeys(d.title for d in [*outer, *starting])
        yield Chunk(
            start + 1, end, about.kind if about else "text", about.qualified if about else "", tuple(names)
        )


def _after_licence(lines: Sequence[str]) -> int:
    """Return the row after a licence comment at the top; 0 if there is none."""
    row = 0
    while row < min(len(lines), _MAX_LICENCE_LINES) and (
        _COMMENT.match(lines[row]) or lines[row].strip() in ("", '"""')
    ):
        row += 1
        if lines[row - 1].rstrip().endswith("*/"):
            break
    return row if len(_LICENCE.findall("\n".join(lines[:row]))) >= 2 else 0


def _with_comment(lines: Sequence[str], row: int) -> int:
    while row > 0 and _COMMENT.match(lines[row - 1]):
        row -= 1
    return row


def _split(lines: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > MAX_CHUNK_LINES:
        near = range(start + MAX_CHUNK_LINES, start + _SPLIT_FROM - 20, -1)
        middle = next((row for row in near if not lines[row - 1].strip()), start + _SPLIT_FROM)
        yield start, middle
        start = middle
    if end > start:
        yield start, end


def _join(pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    if not pieces:
        return
    start, end = pieces[0]
    for a, b in pieces[1:]:
        if b - start > MAX_CHUNK_LINES + (_MIN_LINES if b - a <= _MIN_LINES else 0):
            yield start, end
            start = a
        end = b
    yield start, end
