"""Questions to a tree: each gives text to read and rows to compute with. Bad input raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kernelpro.library import answers, grepping, ranking, symbols
from kernelpro.library.index import Index, ask
from kernelpro.library.trees import Listing, Tree
from kernelpro.records import BadInput

MOST = 50
"""The largest limit: beyond, an answer is longer than what an agent reads."""
LONGEST_QUERY = 400
_PAGE = 100
"""Lines of a reading whose end is not given."""


@dataclass(frozen=True)
class Answer:
    """`rows` hold what `text` shows, ready for JSON."""

    text: str
    rows: list[dict[str, Any]]


def search(tree: Tree, query: str, limit: int) -> Answer:
    if not _short(query, "query").strip():
        raise BadInput("query: empty; give words or identifiers, such as: tma load sm90")
    most = _bounded(limit)
    note, found = _asked(tree, lambda index, _: ranking.find(index, tree, query, most))
    return Answer(note + answers.hits(query, found), [asdict(hit) for hit in found.hits])


def grep(tree: Tree, pattern: str, regex: bool, glob: str, ignore_case: bool, limit: int) -> Answer:
    most = _bounded(limit)
    found = grepping.grep(tree, tree.listing(), pattern, regex, _short(glob, "glob"), ignore_case)
    return Answer(answers.matched(pattern, found, most), _lines(answers.spread(found.lines, most)))


def outline(tree: Tree, path: str) -> Answer:
    note, (known, found) = _asked(
        tree, lambda index, listing: (listing.find(path), symbols.outline(index, listing.find(path)))
    )
    return Answer(
        note + answers.outlined(known, found, len(tree.lines(known))), [asdict(place) for place in found]
    )


def read(tree: Tree, path: str, start: int, end: int) -> Answer:
    """Lines start..end; end=0: a page."""
    known = tree.listing().find(path)
    lines = tree.lines(known)
    end = end or start + _PAGE - 1
    if start < 1 or end < start:
        raise BadInput(f"lines {start}-{end}: start counts from 1, and end is not before it")
    if start > max(len(lines), 1):
        raise BadInput(f"{known}: has {len(lines)} lines; start={start} is beyond")
    shown = lines[start - 1 : min(end, start + answers.MOST_LINES - 1)]
    rows = _lines([(known, number, text) for number, text in enumerate(shown, start)])
    return Answer(answers.reading(known, lines, start, end), rows)


def definition(tree: Tree, symbol: str, limit: int) -> Answer:
    most = _bounded(limit)
    note, found = _asked(tree, lambda index, _: symbols.defined(index, symbol))
    return Answer(note + answers.places(tree, found, most), [asdict(place) for place in found[:most]])


def uses(tree: Tree, symbol: str, limit: int) -> Answer:
    most = _bounded(limit)
    note, found = _asked(tree, lambda index, _: symbols.used(index, tree, symbol))
    return Answer(note + answers.uses(symbol, found, most), _lines(answers.spread(found[0], most)))


def _asked(tree: Tree, question: Callable[[Index, Listing], Any]) -> tuple[str, Any]:
    """The answer, and the note of the index as a line of its own."""
    listing = tree.listing()
    return ask(
        tree, listing, lambda index: (index.note + "\n" if index.note else "", question(index, listing))
    )


def _lines(found: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"path": path, "line": line, "text": text} for path, line, text in found]


def _bounded(limit: int) -> int:
    if limit < 1:
        raise BadInput(f"limit={limit}: must be 1 to {MOST}")
    return min(limit, MOST)


def _short(text: str, name: str) -> str:
    if len(text) > LONGEST_QUERY:
        raise BadInput(f"{name}: {len(text)} characters; at most {LONGEST_QUERY}")
    return text
