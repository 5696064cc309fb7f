"""The index of a tree: one SQLite file with full-text search, in the user's cache.

1. Its name holds the tree's path and the fingerprint of its listing: another listing, another file. 2. It is built beside its place
and renamed into it, so that it is there whole or not at all; two builders do the same work twice and no harm. 3. A file that cannot
be read is built anew, when it is opened or when a query stumbles over it. 4. Where the cache cannot be written the index lives in
memory, and says so. Old indexes of the same tree go when a new one is built, others after 30 days without use.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernelpro.library.chunks import chunks
from kernelpro.library.scanner import definitions
from kernelpro.library.trees import Listing, NotFound, Tree
from kernelpro.library.words import WORD, Memo
from kernelpro.records import BadInput, folders

SCHEMA = 1
"""Counts up when the tables, the tokens or the chunks change: older files are then built anew."""
MOST_REPEATS = 3
"""How often one word of a chunk is indexed: bm25 saturates there, and unrolled assembly repeats words hundreds of times."""
_KEPT_SECONDS = 30 * 86400
_ABANDONED_SECONDS = 3600
_Answer = TypeVar("_Answer")

_TABLES = """
    CREATE TABLE file (id INTEGER PRIMARY KEY, path TEXT NOT NULL);
    CREATE TABLE chunk (id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, end INTEGER, kind TEXT, symbol TEXT, names TEXT);
    CREATE TABLE definition
        (name TEXT, lower TEXT, qualified TEXT, kind TEXT, file INTEGER, start INTEGER, line INTEGER, end INTEGER);
    CREATE VIRTUAL TABLE words USING fts5 (names, path, body, content='', tokenize="ascii tokenchars '_'");
"""


@dataclass
class Index:
    """An open index. `note` is for the reader: why it is slower than usual, or empty."""

    db: sqlite3.Connection
    note: str = ""


def ask(tree: Tree, listing: Listing, question: Callable[[Index], _Answer]) -> _Answer:
    """Put a question to the tree's index; build it if it is missing, old or damaged."""
    place = _place(tree, listing)
    for last in (False, True):
        index = _open(place) or _build_at(place, tree, listing)
        try:
            return question(index)
        except sqlite3.DatabaseError as error:
            if last or index.note:
                raise BadInput(
                    f"the index of {tree.name} cannot be read ({error}); delete {place.parent}"
                ) from error
            with contextlib.suppress(OSError):
                place.unlink()
        finally:
            if not index.note:
                index.db.close()
    raise AssertionError("unreachable")


def built(tree: Tree, listing: Listing) -> bool:
    """Whether a question will find the index ready, rather than wait for it."""
    return _place(tree, listing).is_file()


def folder() -> Path:
    return folders.cache("library")


def _place(tree: Tree, listing: Listing) -> Path:
    return (
        folder()
        / f"{_prefix(tree)}{hashlib.sha256(f'{SCHEMA} {listing.fingerprint}'.encode()).hexdigest()[:16]}.db"
    )


def _prefix(tree: Tree) -> str:
    return hashlib.sha256(os.fsencode(tree.root)).hexdigest()[:16] + "-"


def _open(place: Path) -> Index | None:
    """The index at that place, or None if it is not there or not whole."""
    if not place.is_file():
        return None
    try:
        # No process writes to an index once it has its name: immutable spares the locks, and works on a read-only disk.
        db = sqlite3.connect(f"{place.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            with contextlib.suppress(OSError):
                os.utime(place)
            return Index(db)
        db.close()
    except sqlite3.DatabaseError:
        pass
    return None


def _build_at(place: Path, tree: Tree, listing: Listing) -> Index:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=".building-")
        os.close(handle)
    except OSError as error:
        return _in_memory(tree, listing.fingerprint, f"{place.parent} cannot be written ({error.strerror})")
    try:
        with contextlib.closing(sqlite3.connect(temporary)) as db:
            _fill(db, tree, listing)
        os.replace(temporary, place)
    except (sqlite3.OperationalError, OSError) as error:
        return _in_memory(
            tree, listing.fingerprint, f"the index could not be kept in {place.parent} ({error})"
        )
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _prune(tree, place)
    return _open(place) or _in_memory(tree, listing.fingerprint, f"{place} vanished")


@functools.lru_cache(maxsize=2)
def _in_memory(tree: Tree, fingerprint: str, why: str) -> Index:
    """An index without a file. The last two are kept for the process: building takes seconds, each holds some 50 MB."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    _fill(db, tree, tree.listing())
    return Index(db, f"note: {why}; the index is in memory and was built for this process alone")


def _fill(db: sqlite3.Connection, tree: Tree, listing: Listing) -> None:
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
    db.execute("BEGIN")
    memo = Memo()
    number = 0
    for identity, path in enumerate(listing.files, 1):
        db.execute("INSERT INTO file VALUES (?, ?)", (identity, path))
        try:
            text = tree.text(path)
        except NotFound:
            continue  # gone since the listing: the next call sees another listing and builds again
        lines = text.removesuffix("\n").split("\n")
        found = definitions(path, text)
        rows = (
            (d.name, d.name.lower(), d.qualified, d.kind, identity, d.start, d.line, d.end) for d in found
        )
        db.executemany("INSERT INTO definition VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        where = _tokens(memo, path)
        for chunk in chunks(lines, found):
            number += 1
            names = "\n".join(chunk.names)
            db.execute(
                "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)",
                (number, identity, chunk.start, chunk.end, chunk.kind, chunk.symbol, names),
            )
            body = _tokens(memo, "\n".join(lines[chunk.start - 1 : chunk.end]))
            row = (number, _tokens(memo, names), where, body)
            db.execute("INSERT INTO words (rowid, names, path, body) VALUES (?, ?, ?, ?)", row)
    db.execute("INSERT INTO words (words) VALUES ('optimize')")
    db.execute("CREATE INDEX by_name ON definition (lower)")
    db.execute("CREATE INDEX by_file ON definition (file)")
    db.execute(f"PRAGMA user_version = {SCHEMA}")
    db.commit()


def _tokens(memo: Memo, text: str) -> str:
    counts = Counter(WORD.findall(text))
    return "".join(
        [memo[word] * (count if count < MOST_REPEATS else MOST_REPEATS) for word, count in counts.items()]
    )


def _prune(tree: Tree, place: Path) -> None:
    now = time.time()
    for other in place.parent.iterdir():
        with contextlib.suppress(OSError):
            age = now - other.stat().st_mtime
            old = other.name.startswith(_prefix(tree)) or age > _KEPT_SECONDS
            if other != place and (old or (other.name.startswith(".building-") and age > _ABANDONED_SECONDS)):
                other.unlink()
