"""From a question to the chunks that answer it, best first.

1. bm25 over three columns: names defined in the chunk, path, body. The best 400 chunks that hold all terms go on; where these are
too few, the best 400 that hold any. 2. The score is multiplied by the share of terms a chunk holds, squared, since a chunk with all
the words beats one with a rare word often; by what the file is (a header, a test); and by what the chunk defines: exactly the name
asked for, or a name made of the words asked for. Ties go to path and line. 3. A file shows at most three chunks: tables of
generated variants would fill the page with copies.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernelpro.library.index import Index
from kernelpro.library.trees import Tree
from kernelpro.library.words import WORD, Memo, terms

WEIGHTS = (8.0, 4.0, 1.0)
"""bm25's weights of names, path and body. Not tuned finely: the questions in tests/library/test_ranking.py hold them in place."""
POOL = 400
"""Chunks that are looked at closely: beyond, no boost brings one to the first page."""
ENOUGH = 3
"""Chunks with every term for each one wanted: then those with fewer terms, which match by the ten thousand, are not ranked."""
CLOSELY = 80
"""Chunks whose names are compared with the question word by word."""
PER_FILE = 3
SHOWN_LINES = 3
_DEFINED = 2.0
"""The chunk defines the identifier that the question spells out."""
_NAMED = 0.5
"""The most that a name made of the words of the question adds: SM90_TMA_LOAD for "tma load sm90"."""
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
    """The best hits; whether more chunks match; how many of the best were left out because their file had its share."""

    hits: list[Hit]
    more: bool
    crowded: int


def find(index: Index, tree: Tree, query: str, limit: int) -> Found:
    asked = terms(query)
    if not asked:
        return Found([], False, 0)
    quoted = [f'"{term}"' for term in asked]
    rows, having = _best(index.db, " AND ".join(quoted)), []
    if len(rows) < ENOUGH * limit and len(asked) > 1:
        rows = _best(index.db, " OR ".join(quoted))
        having = [
            {row for (row,) in index.db.execute("SELECT rowid FROM words WHERE words MATCH ?", (term,))}
            for term in quoted
        ]
    spelt = {term[1:] for term in asked if term.startswith("_")} or (
        {query.strip().lower()} if len(asked) == 1 else set()
    )
    scored: list[Hit] = []
    titles: dict[tuple[str, int], str] = {}
    for number, path, start, end, kind, symbol, names, score in rows:
        share = sum(number in held for held in having) / len(asked) if having else 1.0
        value = -score * share**2 * place(path)
        if spelt and not spelt.isdisjoint(name.split("<", 1)[0] for name in names.lower().split("\n")):
            value *= _DEFINED
        scored.append(Hit(path, start, end, kind, symbol, value))
        titles[path, start] = names
    scored.sort(key=_order)
    memo = Memo()
    for number, hit in enumerate(scored[:CLOSELY]):
        likeness = _likeness(titles[hit.path, hit.start], asked, memo)
        scored[number] = replace(hit, score=hit.score * (1 + _NAMED * likeness))
    scored.sort(key=_order)
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
    return Found(_with_lines(tree, best, asked), len(scored) > len(best) + crowded, crowded)


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


def _best(db: sqlite3.Connection, match: str) -> list[tuple[int, str, int, int, str, str, str, float]]:
    weights = ", ".join(map(str, WEIGHTS))
    return db.execute(
        "SELECT chunk.id, path, start, end, kind, symbol, names, score FROM"
        f" (SELECT rowid AS row, bm25(words, {weights}) AS score FROM words WHERE words MATCH ? ORDER BY score, row LIMIT {POOL})"
        " JOIN chunk ON chunk.id = row JOIN file ON file.id = chunk.file",
        (match,),
    ).fetchall()


def _order(hit: Hit) -> tuple[float, str, int]:
    return -round(hit.score, 9), hit.path, hit.start


def _likeness(names: str, asked: Sequence[str], memo: Memo) -> float:
    """How much the best of the names is made of the question: share of the question in it times its share in the question."""
    wanted = {term for term in asked if not term.startswith("_")}
    best = 0.0
    for name in names.split("\n"):
        held = {
            token
            for word in WORD.findall(name.split("<", 1)[0])
            for token in memo[word].split()
            if not token.startswith("_")
        }
        if held and wanted:
            best = max(best, len(held & wanted) ** 2 / (len(held) * len(wanted)))
    return best


def _with_lines(tree: Tree, hits: Sequence[Hit], asked: Sequence[str]) -> list[Hit]:
    wanted, memo = set(asked), Memo()
    texts = {path: tree.lines(path) for path in dict.fromkeys(hit.path for hit in hits)}
    done = []
    for hit in hits:
        rows = []
        for number, line in enumerate(texts[hit.path][hit.start - 1 : hit.end], hit.start):
            held = wanted.intersection(" ".join([memo[word] for word in WORD.findall(line[:1000])]).split())
            if held:
                rows.append((-len(held), number, line))
        best = sorted((number, line) for _, number, line in sorted(rows)[:SHOWN_LINES])
        if not best and hit.start <= len(texts[hit.path]):
            best = [(hit.start, texts[hit.path][hit.start - 1])]
        done.append(replace(hit, score=round(hit.score, 3), lines=best))
    return done
