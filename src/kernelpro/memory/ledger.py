"""A SQLite file that several processes use, and that nothing is lost from.

Write-ahead log, synchronised at every commit: what was committed survives a killed process and a power cut. Writers
wait for each other. A corrupt file is reported in one line, kept under another name, and a new one is begun. A
connection lives for one piece of work, so that threads and forks have nothing to share.
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
"""Another process writes for milliseconds; this is for a machine that is swapping."""


class Ledger:
    def __init__(self, path: Path, schema: str, report: Callable[[str], None]):
        self._path, self._schema, self._report = path, schema, report
        self._ready = False

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work on the open file, each statement a transaction unless `work` begins one. Raises BadInput where it cannot."""
        try:
            try:
                return self._on_file(work)
            except sqlite3.DatabaseError as error:
                if isinstance(
                    error, sqlite3.OperationalError
                ):  # locked, full, not permitted: not the file's fault
                    raise
                self._ready = False
                self._set_aside(str(error))
                return self._on_file(work)
        except (sqlite3.Error, OSError) as error:
            raise BadInput(f"{self._path} cannot be used: {error}") from None

    def _on_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if not self._ready or not self._path.exists():
            with (
                self._alone(),
                self._connection() as db,
            ):  # two processes must not change the journal's mode at once
                _check(db)
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
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_name(f"{self._path.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _set_aside(self, why: str) -> None:
        """Only if it is still corrupt: another process may have begun a new one already."""
        with self._alone():
            if self._is_sound():
                return
            kept = self._path.with_name(
                f"{self._path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            )
            for ending in ("-wal", "-shm", ""):
                part = self._path.with_name(self._path.name + ending)
                if part.exists():
                    part.rename(kept.with_name(kept.name + ending))
        self._report(f"{self._path} was corrupt ({why}): kept as {kept.name}, a new one is begun")

    def _is_sound(self) -> bool:
        try:
            with self._connection() as db:
                _check(db)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False
        return True


def _check(db: sqlite3.Connection) -> None:
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(str(found).split()))
