"""A file in chunks of about 60 lines at most, cut where definitions begin: what the index holds and a search returns.

1. Borders are the first lines of definitions, with the comment above them; between two borders lies an atom. 2. An atom beyond 60
lines is cut at the blank line nearest below line 50 of it. 3. Neighbouring atoms join as long as they fit in 60 lines. 4. A licence
at the top of a file is left out: it is the same everywhere and would answer every question about terms and conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelpro.library.scanner import Definition

MOST_LINES = 60
"""About one screen: small enough to be about one thing, large enough to be read alone."""
_SPLIT_FROM = 50
_SCRAP = 8
"""Lines too few to stand alone, such as closing braces: they stay with what is above them."""
_SMALL = ("alias", "declaration", "macro")
"""Kinds that neither begin a chunk nor enclose one."""
_COMMENT = re.compile(r"\s*(//|/\*|\*|#(?!\s*(?:if|el|end|def|inc|pragma|undef))|@|template\b)")
_LONGEST_LICENCE = 100
_LICENCE = re.compile(r"copyright|licen[sc]e|redistribut", re.IGNORECASE)


@dataclass(frozen=True)
class Chunk:
    """Lines start..end (from 1, inclusive). `symbol`: the definition the chunk begins in or with; `names`: all it touches."""

    start: int
    end: int
    kind: str
    symbol: str
    names: tuple[str, ...]


def chunks(lines: Sequence[str], found: Sequence[Definition]) -> Iterator[Chunk]:
    first = _after_licence(lines)
    starts = {_with_comment(lines, d.start - 1) for d in found if d.kind not in _SMALL}
    borders = sorted({first} | {row for row in starts if row > first})
    pieces = [
        piece for a, b in zip(borders, [*borders[1:], len(lines)], strict=True) for piece in _cut(lines, a, b)
    ]
    at = 0
    opening: list[Definition] = []
    """Definitions that begin before the chunk's end, outermost first, not yet over."""
    for start, end in _joined(pieces):
        if not any(line.strip() for line in lines[start:end]):
            continue
        opening = [d for d in opening if d.end > start]
        outer = list(opening)
        began = []
        while at < len(found) and found[at].start <= end:
            began.append(found[at])
            at += 1
        larger = [d for d in began if d.kind not in _SMALL]
        opening += larger
        main = min(larger or began, key=lambda d: d.depth, default=None)
        about = outer[-1] if outer and (main is None or main.depth > outer[-1].depth) else main
        names = dict.fromkeys(d.title for d in [*outer, *began])
        yield Chunk(
            start + 1, end, about.kind if about else "text", about.qualified if about else "", tuple(names)
        )


def _after_licence(lines: Sequence[str]) -> int:
    """The row after a leading comment that is a licence, else 0."""
    row = 0
    while row < min(len(lines), _LONGEST_LICENCE) and (
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


def _cut(lines: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > MOST_LINES:
        near = range(start + MOST_LINES, start + _SPLIT_FROM - 20, -1)
        middle = next((row for row in near if not lines[row - 1].strip()), start + _SPLIT_FROM)
        yield start, middle
        start = middle
    if end > start:
        yield start, end


def _joined(pieces: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    if not pieces:
        return
    start, end = pieces[0]
    for a, b in pieces[1:]:
        if b - start > MOST_LINES + (_SCRAP if b - a <= _SCRAP else 0):
            yield start, end
            start = a
        end = b
    yield start, end
