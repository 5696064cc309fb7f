"""Opens, migrates and locks the SQLite file of a run. Errors are one line that says what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelpro.records import BadInput

_MIGRATIONS = (
    """
    CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE step (number INTEGER PRIMARY KEY, stage TEXT NOT NULL, data TEXT NOT NULL) STRICT;
    CREATE TABLE event
        (id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE activity (job TEXT PRIMARY KEY, stage TEXT NOT NULL, since REAL NOT NULL) STRICT;
    CREATE TABLE step_change
        (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL UNIQUE) STRICT;
    INSERT INTO step_change (number) SELECT number FROM step ORDER BY number;
    CREATE TRIGGER step_changed AFTER INSERT ON step
        BEGIN INSERT OR REPLACE INTO step_change (number) VALUES (new.number); END;
    """,
)
"""One migration for each schema version. SQLite's user_version holds the version of a file."""
_BUSY_SECONDS = 10.0
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.01
"""Locking is retried, because `RunStore.state` of another process holds the lock for some microseconds."""


class NoSpaceLeft(BadInput):
    """The disk is full. A run that hits this is kept."""


def open_database(path: Path, create: bool) -> sqlite3.Connection:
    """Open the database of a run and migrate it to the current schema; read-only if this user cannot write
    its folder. `create`: create a missing file. Otherwise a missing file is an error, so that a run that was
    just deleted stays deleted."""
    if not os.access(path.parent, os.W_OK):
        return _connect_for_reading(path)
    database = _connect(path, "mode=rwc" if create else "mode=rw")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    _migrate(database, path)
    return database


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    version = _schema_version(database)
    if version > len(_MIGRATIONS):
        raise BadInput(f"{path} was written by a newer KernelPro (schema {version}): update KernelPro")
    for number in range(version, len(_MIGRATIONS)):
        set_version = f"PRAGMA user_version={number + 1}"
        try:
            database.executescript(f"BEGIN IMMEDIATE;{_MIGRATIONS[number]};{set_version};COMMIT;")
        except sqlite3.OperationalError:
            rollback(database)
            if _schema_version(database) <= number:  # else another process has migrated it
                raise


def _schema_version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def rollback(database: sqlite3.Connection) -> None:
    """Roll the open transaction back, if there is one: if the disk is full, SQLite has done so itself."""
    if database.in_transaction:
        database.execute("ROLLBACK")


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    """A connection to a run in a folder that this user cannot write. Without a write-ahead log no process is
    writing; the file is then opened as immutable, because SQLite cannot create its lock file there."""
    immutable = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    return _connect(path, f"mode=ro{immutable}")


def _connect(path: Path, parameters: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{parameters}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)


def try_lock(handle: int) -> bool:
    """Lock an open file for this process; False if another process holds the lock."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
    return False


def _is_disk_full(path: Path) -> bool:
    try:
        return os.statvfs(path).f_bavail == 0
    except OSError:
        return False


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and of the file system to BadInput, with one line that says what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or _is_disk_full(path):
            resume = f", then `kernelpro resume {path.name}`; saved steps are kept"
            hint = resume if (path / "run.db").exists() else ""
            raise NoSpaceLeft(f"no space left for {path}: free some space{hint}") from None
        if "unable to open" in str(error) and not (path / "run.db").exists():
            raise BadInput(f"there is no run in {path}: it was deleted") from None
        if "readonly" in str(error) or "unable to open" in str(error):
            raise BadInput(f"{path} cannot be written: {error}") from None
        raise BadInput(f"{path}: {error}") from None
    except sqlite3.DatabaseError as error:
        raise BadInput(
            f"{path / 'run.db'} is damaged ({error}): `sqlite3 run.db .recover` may save what is in it"
        ) from None
    except OSError as error:
        kind = NoSpaceLeft if error.errno == errno.ENOSPC else BadInput
        raise kind(f"{path}: {error.strerror or error}") from None
