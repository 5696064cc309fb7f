"""Ranks the chunks that answer a query.

1. Score chunks by bm25 over three columns: names defined in the chunk, path and body. Take the best 400
   chunks that contain all terms or, if these are too few, the best 400 that contain any term.
2. Multiply the score by the squared share of terms in the chunk, so that all words once beat a rare word many
   times. Multiply it by a weight for the kind of file (header, test). Boost chunks that define the name in
   the query, or a name made of its words. Break ties by path and line.
3. Return at most three chunks per file, because tables of generated variants would fill the page with copies.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelpro.code_search.index import TreeIndex
from kernelpro.code_search.tokenizer import WORD, TokenCache, terms
from kernelpro.code_search.trees import SourceTree

WEIGHTS = (8.0, 4.0, 1.0)
"""bm25 weights of names, path and body. The queries in tests/code_search/test_ranking.py check them."""
MAX_CANDIDATES = 400
"""Number of chunks that are scored in detail: no boost lifts a chunk beyond them to the first page."""
MIN_FULL_MATCHES = 3
"""If there are this many chunks with all terms per requested hit, chunks with fewer terms are not ranked."""
NAME_CANDIDATES = 80
"""Number of chunks whose names are compared with the query word by word."""
MAX_HITS_PER_FILE = 3
SHOWN_LINES = 3
_EXACT_NAME_BOOST = 2.0
"""Factor for a chunk that defines the identifier in the query."""
_SIMILAR_NAME_BOOST = 0.5
"""Largest boost for a name made of the query's words, such as SM90_TMA_LOAD for "tma load sm90"."""
_HEADERS = frozenset({".h", ".hpp", ".hxx", ".hh", ".cuh", ".inl"})
_BUILD = frozenset({".txt", ".cmake"})


@dataclass(frozen=True)
class Hit:
    """A chunk that matches, with its best lines."""

    path: str
    start: int
    end: int
    kind: str
    symbol: str
    score: float
    lines: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class SearchResult:
    """The best hits, whether more chunks match, and how many were omitted because of MAX_HITS_PER_FILE."""

    hits: list[Hit]
    more: bool
    omitted: int


def rank(index: TreeIndex, tree: SourceTree, query: str, limit: int) -> SearchResult:
    """Return the best chunks for a query."""
    query_terms = terms(query)
    if not query_terms:
        return SearchResult([], False, 0)
    quoted = [f'"{term}"' for term in query_terms]
    rows, chunks_by_term = _best(index.db, " AND ".join(quoted)), []
    if len(rows) < MIN_FULL_MATCHES * limit and len(query_terms) > 1:
        rows = _best(index.db, " OR ".join(quoted))
        chunks_by_term = [
            {row for (row,) in index.db.execute("SELECT rowid FROM words WHERE words MATCH ?", (term,))}
            for term in quoted
        ]
    identifiers = {term[1:] for term in query_terms if term.startswith("_")} or (
        {query.strip().lower()} if len(query_terms) == 1 else set()
    )
    scored: list[Hit] = []
    titles: dict[tuple[str, int], str] = {}
    for number, path, start, end, kind, symbol, names, score in rows:
        share = sum(number in held for held in chunks_by_term) / len(query_terms) if chunks_by_term else 1.0
        value = -score * share**2 * file_weight(path)
        if identifiers and not identifiers.isdisjoint(
            name.split("<", 1)[0] for name in names.lower().split("\n")
        ):
            value *= _EXACT_NAME_BOOST
        scored.append(Hit(path, start, end, kind, symbol, value))
        titles[path, start] = names
    scored.sort(key=_order)
    memo = TokenCache()
    for number, hit in enumerate(scored[:NAME_CANDIDATES]):
        likeness = _name_similarity(titles[hit.path, hit.start], query_terms, memo)
        scored[number] = replace(hit, score=hit.score * (1 + _SIMILAR_NAME_BOOST * likeness))
    scored.sort(key=_order)
    shown: Counter[str] = Counter()
    best: list[Hit] = []
    omitted = 0
    for hit in scored:
        if len(best) == limit:
            break
        shown[hit.path] += 1
        if shown[hit.path] > MAX_HITS_PER_FILE:
            omitted += 1
        else:
            best.append(hit)
    return SearchResult(_with_lines(tree, best, query_terms), len(scored) > len(best) + omitted, omitted)


def file_weight(path: str) -> float:
    """The weight of a file. Definitions of the library rank before examples, tests and build files."""
    folders = path.lower().split("/")[:-1]
    extension = os.path.splitext(path)[1].lower()
    if extension in _BUILD:
        return 0.4
    if any(part in ("test", "tests", "unit", "testing", "third_party") for part in folders):
        return 0.6
    if extension in _HEADERS:
        return 0.9 if "examples" in folders or "tools" in folders else 1.1
    return 0.9 if "examples" in folders else 1.0


def _best(db: sqlite3.Connection, match: str) -> list[tuple[int, str, int, int, str, str, str, float]]:
    weights = ", ".join(map(str, WEIGHTS))
    return db.execute(
        "SELECT chunk.id, path, start, end, kind, symbol, names, score FROM (SELECT rowid AS row,"
        f" bm25(words, {weights}) AS score FROM words WHERE words MATCH ? ORDER BY score, row LIMIT"
        f" {MAX_CANDIDATES}) JOIN chunk ON chunk.id = row JOIN file ON file.id = chunk.file",
        (match,),
    ).fetchall()


def _order(hit: Hit) -> tuple[float, str, int]:
    return -round(hit.score, 9), hit.path, hit.start


def _name_similarity(names: str, query_terms: Sequence[str], memo: TokenCache) -> float:
    """Similarity of the most similar name to the query.

    It is the share of the query's terms in the name times the share of the name's terms in the query.
    """
    wanted = {term for term in query_terms if not term.startswith("_")}
    best = 0.0
    for name in names.split("\n"):
        name_terms = {
            token
            for word in WORD.findall(name.split("<", 1)[0])
            for token in memo[word].split()
            if not token.startswith("_")
        }
        if name_terms and wanted:
            best = max(best, len(name_terms & wanted) ** 2 / (len(name_terms) * len(wanted)))
    return best


def _with_lines(tree: SourceTree, hits: Sequence[Hit], query_terms: Sequence[str]) -> list[Hit]:
    wanted, memo = set(query_terms), TokenCache()
    texts = {path: tree.lines(path) for path in dict.fromkeys(hit.path for hit in hits)}
    results = []
    for hit in hits:
        rows = []
        for number, line in enumerate(texts[hit.path][hit.start - 1 : hit.end], hit.start):
            matched_terms = wanted.intersection(
                " ".join([memo[word] for word in WORD.findall(line[:1000])]).split()
            )
            if matched_terms:
                rows.append((-len(matched_terms), number, line))
        best = sorted((number, line) for _, number, line in sorted(rows)[:SHOWN_LINES])
        if not best and hit.start <= len(texts[hit.path]):
            best = [(hit.start, texts[hit.path][hit.start - 1])]
        results.append(replace(hit, score=round(hit.score, 3), lines=best))
    return results
