"""The index of a source tree: one SQLite file with full-text search, in the user's cache.

1. The file name contains hashes of the tree's path and of its listing, so that a changed tree gets a new
   file.
2. The index is built in a temporary file, which is then renamed atomically. Two concurrent builders do the
   work twice, without harm.
3. A damaged file is rebuilt when it is opened or when a query fails.
4. If the cache is not writable, the index is kept in memory, and a note says so.

Building an index deletes older indexes of the same tree, and all that have not been used for 30 days.
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

from kernelpro.code_search.chunks import chunks
from kernelpro.code_search.scanner import definitions
from kernelpro.code_search.tokenizer import WORD, TokenCache
from kernelpro.code_search.trees import Listing, NotFound, SourceTree
from kernelpro.records import BadInput, folders

SCHEMA = 1
"""Increase this number when tables, tokens or chunks change, so that older files are rebuilt."""
MAX_REPEATS = 3
"""How often one word of a chunk is indexed at most: bm25 saturates, and unrolled assembly repeats words."""
_MAX_AGE_SECONDS = 30 * 86400
_ABANDONED_SECONDS = 3600
_Answer = TypeVar("_Answer")

_TABLES = """
    CREATE TABLE file (id INTEGER PRIMARY KEY, path TEXT NOT NULL);
    CREATE TABLE chunk
        (id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, end INTEGER, kind TEXT, symbol TEXT,
        names TEXT);
    CREATE TABLE definition
        (name TEXT, lower TEXT, qualified TEXT, kind TEXT, file INTEGER, start INTEGER, line INTEGER,
        end INTEGER);
    CREATE VIRTUAL TABLE words USING fts5 (names, path, body, content='', tokenize="ascii tokenchars '_'");
"""


@dataclass
class TreeIndex:
    """An open index. `note` tells the reader why it is slower than usual; it is usually empty."""

    db: sqlite3.Connection
    note: str = ""


def query(tree: SourceTree, listing: Listing, function: Callable[[TreeIndex], _Answer]) -> _Answer:
    """Call `function` with the tree's index. Builds the index if it is missing, outdated or damaged."""
    path = _index_path(tree, listing)
    for last in (False, True):
        index = _open(path) or _build(path, tree, listing)
        try:
            return function(index)
        except sqlite3.DatabaseError as error:
            if last or index.note:
                raise BadInput(
                    f"the index of {tree.name} cannot be read ({error}); delete {path.parent}"
                ) from error
            with contextlib.suppress(OSError):
                path.unlink()
        finally:
            if not index.note:
                index.db.close()
    raise AssertionError("unreachable")


def is_built(tree: SourceTree, listing: Listing) -> bool:
    """Whether the index exists. If not, the next query waits until it is built."""
    return _index_path(tree, listing).is_file()


def folder() -> Path:
    """Return the folder of all indexes."""
    return folders.cache("code_search")


def _index_path(tree: SourceTree, listing: Listing) -> Path:
    return (
        folder()
        / f"{_prefix(tree)}{hashlib.sha256(f'{SCHEMA} {listing.fingerprint}'.encode()).hexdigest()[:16]}.db"
    )


def _prefix(tree: SourceTree) -> str:
    return hashlib.sha256(os.fsencode(tree.root)).hexdigest()[:16] + "-"


def _open(path: Path) -> TreeIndex | None:
    """Open the index; None if it is missing or incomplete."""
    if not path.is_file():
        return None
    try:
        # No process writes to a finished index: `immutable` avoids locks and works on a read-only disk.
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
        if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            with contextlib.suppress(OSError):
                os.utime(path)
            return TreeIndex(db)
        db.close()
    except sqlite3.DatabaseError:
        pass
    return None


def _build(path: Path, tree: SourceTree, listing: Listing) -> TreeIndex:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".building-")
        os.close(handle)
    except OSError as error:
        return _in_memory(tree, listing.fingerprint, f"{path.parent} cannot be written ({error.strerror})")
    try:
        with contextlib.closing(sqlite3.connect(temporary)) as db:
            _fill(db, tree, listing)
        os.replace(temporary, path)
    except (sqlite3.OperationalError, OSError) as error:
        return _in_memory(
            tree, listing.fingerprint, f"the index could not be stored in {path.parent} ({error})"
        )
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    _prune(tree, path)
    return _open(path) or _in_memory(tree, listing.fingerprint, f"{path} vanished")


@functools.lru_cache(maxsize=2)
def _in_memory(tree: SourceTree, fingerprint: str, why: str) -> TreeIndex:
    """Build an index in memory. The last two are cached. Each takes seconds to build, and about 50 MB."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    _fill(db, tree, tree.listing())
    return TreeIndex(db, f"note: {why}; the index is in memory, for this process only")


def _fill(db: sqlite3.Connection, tree: SourceTree, listing: Listing) -> None:
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
    db.execute("BEGIN")
    memo = TokenCache()
    number = 0
    for identity, path in enumerate(listing.files, 1):
        db.execute("INSERT INTO file VALUES (?, ?)", (identity, path))
        try:
            text = tree.text(path)
        except NotFound:
            continue  # it was deleted after the listing; the next query gets a new listing and rebuilds
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


def _tokens(memo: TokenCache, text: str) -> str:
    counts = Counter(WORD.findall(text))
    return "".join(
        [memo[word] * (count if count < MAX_REPEATS else MAX_REPEATS) for word, count in counts.items()]
    )


def _prune(tree: SourceTree, path: Path) -> None:
    now = time.time()
    for other in path.parent.iterdir():
        with contextlib.suppress(OSError):
            age = now - other.stat().st_mtime
            old = other.name.startswith(_prefix(tree)) or age > _MAX_AGE_SECONDS
            if other != path and (old or (other.name.startswith(".building-") and age > _ABANDONED_SECONDS)):
                other.unlink()
