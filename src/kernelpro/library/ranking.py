"""From a question to the chunks that answer it, best first.

1. bm25 over three columns: names defined in the chunk, path, body. Any term may match; the best 400 chunks go on. 2. The score is
multiplied by the share of terms a chunk holds, squared, since a chunk with all the words beats one with a rare word often; by what it is
(a definition of exactly the name asked for, a header, a test); the tie goes to path and line. 3. A file shows at most three chunks:
tables of generated variants would fill the page with copies.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelpro.library.index import Index
from kernelpro.library.trees import Tree
from kernelpro.library.words import WORD, Term, terms, tokens

WEIGHTS = (8.0, 4.0, 1.0)
"""bm25's weights of names, path and body. Chosen on the questions in tests/library/test_ranking.py."""
POOL = 400
"""Chunks that are looked at closely: beyond, no boost brings one to the first page."""
PER_FILE = 3
SHOWN_LINES = 3
_DEFINED = 2.0
"""The chunk defines the identifier that the question spells out."""
_HEADERS = frozenset({".h", ".hpp", ".hxx", ".hh", ".cuh", ".inl"})
_BUILD = frozenset({".txt", ".cmake"})


@dataclass(frozen=True)
class Hit:
    """A chunk that answers, with the lines in it that hold most of the question."""

    path: str
    start: int
    end: int
    kind: str
    symbol: str
    score: float
    lines: list[tuple[int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """The best hits; how many chunks matched at all; how many of the best were left out because their file had its share."""

    hits: list[Hit]
    matched: int
    crowded: int


def find(index: Index, tree: Tree, query: str, limit: int) -> Found:
    asked = terms(query)
    if not asked:
        return Found([], 0, 0)
    having = [_rows(index.db, term) for term in asked]
    rows = index.db.execute(
        "SELECT chunk.id, path, start, end, kind, symbol, names, score FROM"
        f" (SELECT rowid AS row, bm25(words, {', '.join(map(str, WEIGHTS))}) AS score FROM words WHERE words MATCH ? ORDER BY score LIMIT {POOL})"
        " JOIN chunk ON chunk.id = row JOIN file ON file.id = chunk.file",
        (" OR ".join(map(_match, asked)),),
    ).fetchall()
    exact = {token for term in asked if term.exact for token in term.alternatives}
    scored = []
    for number, path, start, end, kind, symbol, names, score in rows:
        share = sum(number in rows for rows in having) / len(asked)
        value = -score * share**2 * place(path)
        if exact and not exact.isdisjoint(_defined(names)):
            value *= _DEFINED
        scored.append(Hit(path, start, end, kind, symbol, value))
    scored.sort(key=lambda hit: (-round(hit.score, 9), hit.path, hit.start))
    shown: Counter[str] = Counter()
    best: list[Hit] = []
    crowded = 0
    for hit in scored:
        if len(best) == limit:
            break
        shown[hit.path] += 1
        if shown[hit.path] > PER_FILE:
            crowded += 1
        else:
            best.append(hit)
    return Found(_with_lines(tree, best, asked), len(set().union(*having)), crowded)


def place(path: str) -> float:
    """Where a file stands: what defines the library before what shows, tests or builds it."""
    folders = path.lower().split("/")[:-1]
    extension = os.path.splitext(path)[1].lower()
    if extension in _BUILD:
        return 0.4
    if any(part in ("test", "tests", "unit", "testing", "third_party") for part in folders):
        return 0.6
    if extension in _HEADERS:
        return 0.9 if "examples" in folders or "tools" in folders else 1.1
    return 0.9 if "examples" in folders else 1.0


def _match(term: Term) -> str:
    return " OR ".join(f'"{token}"' for token in term.alternatives)


def _rows(db: sqlite3.Connection, term: Term) -> set[int]:
    return {row for (row,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", (_match(term),))}


def _defined(names: str) -> set[str]:
    """Tokens of the identifiers that a chunk's names end in."""
    last = [name.split("<")[0].rsplit("::", 1)[-1].rsplit(".", 1)[-1] for name in names.split("\n")]
    return {tokens(name)[-1] for name in last if tokens(name)}


def _with_lines(tree: Tree, hits: Sequence[Hit], asked: Sequence[Term]) -> list[Hit]:
    wanted = {token: number for number, term in enumerate(asked) for token in term.alternatives}
    texts = {path: tree.lines(path) for path in dict.fromkeys(hit.path for hit in hits)}
    done = []
    for hit in hits:
        rows = []
        for number, line in enumerate(texts[hit.path][hit.start - 1 : hit.end], hit.start):
            held = {wanted[token] for word in WORD.findall(line[:1000]) for token in tokens(word) if token in wanted}
            if held:
                rows.append((-len(held), number, line))
        best = sorted((number, line) for _, number, line in sorted(rows)[:SHOWN_LINES])
        if not best and hit.start <= len(texts[hit.path]):
            best = [(hit.start, texts[hit.path][hit.start - 1])]
        done.append(Hit(hit.path, hit.start, hit.end, hit.kind, hit.symbol, round(hit.score, 3), best))
    return done
