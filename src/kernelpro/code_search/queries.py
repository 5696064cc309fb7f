"""Queries to a source tree. Each returns text for readers and rows for programs, and raises BadInput."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kernelpro.code_search import formatting, line_search, ranking, symbols
from kernelpro.code_search.index import TreeIndex, query
from kernelpro.code_search.trees import Listing, SourceTree
from kernelpro.records import BadInput

MAX_LIMIT = 50
"""The largest `limit`: agents do not read longer answers."""
MAX_QUERY_CHARACTERS = 400
_DEFAULT_LINES = 100
"""Number of lines of a `read` without an end."""


@dataclass(frozen=True)
class SearchAnswer:
    """The result of a query. `rows` has the same content as `text`, ready for JSON."""

    text: str
    rows: list[dict[str, Any]]


def search(tree: SourceTree, query: str, limit: int) -> SearchAnswer:
    """Find the chunks that answer a query, best first."""
    if not _check_length(query, "query").strip():
        raise BadInput("query: empty; give words or identifiers, such as: tma load sm90")
    max_hits = _check_limit(limit)
    note, results = _query_index(tree, lambda index, _: ranking.rank(index, tree, query, max_hits))
    return SearchAnswer(note + formatting.format_hits(query, results), [asdict(hit) for hit in results.hits])


def grep(
    tree: SourceTree, pattern: str, regex: bool, glob: str, ignore_case: bool, limit: int
) -> SearchAnswer:
    """Find every line that matches a pattern."""
    limit = _check_limit(limit)
    found = line_search.grep(tree, tree.listing(), pattern, regex, _check_length(glob, "glob"), ignore_case)
    return SearchAnswer(
        formatting.format_matches(pattern, found, limit),
        _line_rows(formatting.limit_per_file(found.lines, limit)),
    )


def outline(tree: SourceTree, path: str) -> SearchAnswer:
    """List the definitions of a file."""
    note, (file, found) = _query_index(
        tree, lambda index, listing: (listing.find(path), symbols.outline(index, listing.find(path)))
    )
    return SearchAnswer(
        note + formatting.format_outline(file, found, len(tree.lines(file))),
        [asdict(location) for location in found],
    )


def read(tree: SourceTree, path: str, start: int, end: int) -> SearchAnswer:
    """Read the lines `start` to `end`; `end=0` reads 100 lines."""
    file = tree.listing().find(path)
    lines = tree.lines(file)
    end = end or start + _DEFAULT_LINES - 1
    if start < 1 or end < start:
        raise BadInput(f"lines {start}-{end}: start must be at least 1, and end not before it")
    if start > max(len(lines), 1):
        raise BadInput(f"{file}: start={start} is beyond its {len(lines)} lines")
    shown = lines[start - 1 : min(end, start + formatting.MAX_READ_LINES - 1)]
    rows = _line_rows([(file, number, text) for number, text in enumerate(shown, start)])
    return SearchAnswer(formatting.format_reading(file, lines, start, end), rows)


def definition(tree: SourceTree, symbol: str, limit: int) -> SearchAnswer:
    """Find the definitions of a symbol."""
    limit = _check_limit(limit)
    note, found = _query_index(tree, lambda index, _: symbols.find_definitions(index, symbol))
    return SearchAnswer(
        note + formatting.format_definitions(tree, found, limit),
        [asdict(location) for location in found[:limit]],
    )


def uses(tree: SourceTree, symbol: str, limit: int) -> SearchAnswer:
    """Find the lines that use a symbol."""
    limit = _check_limit(limit)
    note, found = _query_index(tree, lambda index, _: symbols.find_uses(index, tree, symbol))
    return SearchAnswer(
        note + formatting.format_uses(symbol, found, limit),
        _line_rows(formatting.limit_per_file(found[0], limit)),
    )


def _query_index(tree: SourceTree, question: Callable[[TreeIndex, Listing], Any]) -> tuple[str, Any]:
    """Query the index. Returns the index's note as a line of text, and the result."""
    listing = tree.listing()
    return query(
        tree, listing, lambda index: (index.note + "\n" if index.note else "", question(index, listing))
    )


def _line_rows(found: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"path": path, "line": line, "text": text} for path, line, text in found]


def _check_limit(limit: int) -> int:
    if limit < 1:
        raise BadInput(f"limit={limit}: must be 1 to {MAX_LIMIT}")
    return min(limit, MAX_LIMIT)


def _check_length(text: str, name: str) -> str:
    if len(text) > MAX_QUERY_CHARACTERS:
        raise BadInput(f"{name}: {len(text)} characters; at most {MAX_QUERY_CHARACTERS} are allowed")
    return text
