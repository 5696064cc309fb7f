"""A SQLite file that several processes share.

Write-ahead log, synchronized at every commit: commits survive a killed process and a power cut. Writers wait
for each other. A corrupt file is reported in one line, kept under another name, and replaced by a new one.
Each piece of work opens its own connection, so that threads and forks share nothing.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from kernelpro.records import BadInput

T = TypeVar("T")

_BUSY_SECONDS = 30.0
"""Another process writes for milliseconds; this allows for a machine that is swapping."""


class SharedDatabase:
    """A database file, created with `schema` on first use."""

    def __init__(self, path: Path, schema: str, report: Callable[[str], None]):
        self._path, self._schema, self._report = path, schema, report
        self._ready = False

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with a connection. Each statement is a transaction unless `work` begins one. Raises
        BadInput if the file cannot be used."""
        try:
            try:
                return self._run(work)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # locked, full, not permitted: not corrupt
                    raise
                self._ready = False
                self._quarantine(str(error))
                return self._run(work)
        except (sqlite3.Error, OSError) as error:
            raise BadInput(f"{self._path} cannot be used: {error}") from None

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if not self._ready or not self._path.exists():
            # Two processes must not change the journal mode at once.
            with self._exclusive(), self._connection() as db:
                _check_integrity(db)
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(self._schema)
            self._ready = True
        with self._connection() as db:
            return work(db)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")
            yield db

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_name(f"{self._path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _quarantine(self, why: str) -> None:
        """Rename the file if it is still corrupt: another process may have replaced it already."""
        with self._exclusive():
            if self._is_intact():
                return
            renamed = self._path.with_name(
                f"{self._path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            )
            for ending in ("-wal", "-shm", ""):
                part = self._path.with_name(self._path.name + ending)
                if part.exists():
                    part.rename(renamed.with_name(renamed.name + ending))
        self._report(
            f"{self._path} was corrupt ({why}): it was renamed to {renamed.name} and replaced by an empty one"
        )

    def _is_intact(self) -> bool:
        try:
            with self._connection() as db:
                _check_integrity(db)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False
        return True


def _check_integrity(db: sqlite3.Connection) -> None:
    status = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if status != "ok":
        raise sqlite3.DatabaseError(" ".join(str(status).split()))
