"""The store of a run: one SQLite file, and content-addressed sources beside it.

    RUNS/<id>/run.db            WAL; every change is one durable transaction
    RUNS/<id>/sources/<hash>.py  written once, under a temporary name first
    RUNS/<id>/lock              held while a process works on the run; dies with it

A step is written at each stage (chosen, drafted, judged, settled), so that a killed run loses at most what was in
flight. Numbered migrations bring older files up to date; a newer one is refused. What cannot be read is reported,
and everything else is kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelpro.records import BadInput, Outcome, RunConfig, Step, digest, folders

_MIGRATIONS = (
    """
    CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE step (number INTEGER PRIMARY KEY, stage TEXT NOT NULL, data TEXT NOT NULL) STRICT;
    CREATE TABLE event (id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL) STRICT;
    """,
)
"""One for each version; the file's own is its user_version."""
_BUSY_SECONDS = 10.0
_ENDS = {"begun": "stopped", "paused": "waiting", "failed": "failed"}
"""The last such event, and what a run is then that nobody works on and that has no outcome."""


def default_runs_dir() -> Path:
    given = os.environ.get("KERNELPRO_RUNS")
    return Path(given) if given else folders.data("runs")


class RunStore:
    """Opened by one process for writing (`lock`), by any number for reading."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.damage: list[str] = []
        """What could not be read, a line each."""
        self._lock: int | None = None
        with _explained(folder):
            self._db = sqlite3.connect(folder / "run.db", timeout=_BUSY_SECONDS, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()

    # --- opening ---------------------------------------------------------------------------------------

    @classmethod
    def create(cls, home: Path, config: RunConfig, name: str) -> RunStore:
        """A new run; its id is its name and a number."""
        with _explained(home):
            home.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1_000_000):
                folder = home / f"{name}-{number}"
                try:
                    folder.mkdir()
                    break
                except FileExistsError:
                    continue
            (folder / "sources").mkdir()
        store = cls(folder)
        store.save_config(config)
        store._set("created", time.time())
        return store

    @classmethod
    def open(cls, home: Path, run: str) -> RunStore:
        folder = home / run
        if not (folder / "run.db").is_file():
            known = ", ".join(sorted(path.parent.name for path in home.glob("*/run.db"))[-5:]) or "none"
            raise BadInput(f"no run is called {run} in {home}; there are: {known}")
        return cls(folder)

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(_MIGRATIONS):
            raise BadInput(
                f"{self.folder / 'run.db'} was written by a newer KernelPro (schema {version}): update KernelPro"
            )
        for number in range(version, len(_MIGRATIONS)):
            self._db.executescript(f"BEGIN;{_MIGRATIONS[number]};PRAGMA user_version={number + 1};COMMIT;")

    def lock(self) -> None:
        """Work on the run alone. The lock dies with its holder."""
        if self._lock is not None:
            return
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise BadInput(
                f"run {self.id} is being worked on by another process (PID {holder}): wait for it, or stop it"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def state(self) -> str:
        """`running` while a process works on it; else how it ended: `finished`, `waiting` for answers or results, `failed`, or
        `stopped` by somebody."""
        if self._is_locked():
            return "running"
        if self.outcome():
            return "finished"
        ends = [kind for _, kind, _ in self.events() if kind in _ENDS]
        return _ENDS[ends[-1]] if ends else "stopped"

    def _is_locked(self) -> bool:
        try:
            handle = os.open(self.folder / "lock", os.O_RDONLY)
        except OSError:  # nobody ever worked on it
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def delete(self) -> None:
        """With all that was found, unless somebody is working on it."""
        self.lock()
        self.close()
        with _explained(self.folder):
            shutil.rmtree(self.folder)

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    @property
    def id(self) -> str:
        return self.folder.name

    # --- the run itself --------------------------------------------------------------------------------

    def _set(self, key: str, value: Any) -> None:
        with _explained(self.folder):
            self._db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (key, json.dumps(value)))

    def _get(self, key: str) -> Any:
        with _explained(self.folder):
            row = self._db.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def config(self) -> RunConfig:
        try:
            return RunConfig.from_json(self._get("config"))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadInput(
                f"run {self.id}: its configuration cannot be read ({type(error).__name__}: {error})"
            ) from None

    def save_config(self, config: RunConfig) -> None:
        self._set("config", config.to_json())

    @property
    def created(self) -> float:
        return float(self._get("created") or 0.0)

    @property
    def wall_seconds(self) -> float:
        """Over all sittings."""
        return float(self._get("wall_seconds") or 0.0)

    def save_wall_seconds(self, seconds: float) -> None:
        self._set("wall_seconds", seconds)

    @property
    def device_seconds(self) -> dict[str, float]:
        """By what for, over all sittings."""
        return dict(self._get("device_seconds") or {})

    def add_device_seconds(self, use: str, seconds: float) -> None:
        """So much of the device was used."""
        known = self.device_seconds
        self._set("device_seconds", known | {use: known.get(use, 0.0) + seconds})

    def save_task_facts(self, ground: dict[str, Any]) -> None:
        """What is measured once before the first candidate: baselines, floor."""
        self._set("ground", ground)

    def task_facts(self) -> dict[str, Any] | None:
        found = self._get("ground")
        return dict(found) if found else None

    def save_outcome(self, outcome: Outcome) -> None:
        self._set("outcome", outcome.to_json())

    def outcome(self) -> Outcome | None:
        found = self._get("outcome")
        return Outcome.from_json(found) if found else None

    # --- steps -----------------------------------------------------------------------------------------

    def save_step(self, step: Step) -> None:
        """A step as far as it has come; whoever returns from here knows that it is on disk."""
        with _explained(self.folder):
            data = json.dumps(step.to_json(), separators=(",", ":"))
            self._db.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?)", (step.number, step.stage, data))

    def steps(self) -> list[Step]:
        """All steps in order. One that cannot be read loses what followed its choice, and is done again."""
        with _explained(self.folder):
            rows = self._db.execute("SELECT number, data FROM step ORDER BY number").fetchall()
        found = []
        for number, data in rows:
            try:
                found.append(Step.from_json(json.loads(data)))
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                self.damage.append(f"step {number} cannot be read ({type(error).__name__}: {error})")
                if rescued := _rescued(number, data):
                    found.append(rescued)
        return found

    def step(self, number: int) -> Step | None:
        return next((step for step in self.steps() if step.number == number), None)

    # --- sources ---------------------------------------------------------------------------------------

    def save_source(self, text: str) -> str:
        """Content-addressed; returns the hash."""
        key = digest("source", text)
        path = self.folder / "sources" / f"{key}.py"
        if not path.exists():
            with _explained(self.folder):
                partial = path.with_suffix(f".{os.getpid()}")
                with partial.open("w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
        return key

    def source(self, key: str) -> str:
        path = self.folder / "sources" / f"{key}.py"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(f"run {self.id}: source {key} is lost ({error.strerror})") from None
        if digest("source", text) != key:
            raise BadInput(f"run {self.id}: source {key} was changed on disk ({path})")
        return text

    # --- events ----------------------------------------------------------------------------------------

    def tell(self, kind: str, **data: Any) -> None:
        with _explained(self.folder):
            text = json.dumps(data, separators=(",", ":"))
            self._db.execute(
                "INSERT INTO event (time, kind, data) VALUES (?, ?, ?)", (time.time(), kind, text)
            )

    def events(self, kind: str | None = None) -> Iterator[tuple[float, str, dict[str, Any]]]:
        with _explained(self.folder):
            rows = self._db.execute(
                "SELECT time, kind, data FROM event WHERE ? IN (kind, '') ORDER BY id", (kind or "",)
            ).fetchall()
        for at, what, data in rows:
            try:
                yield at, what, json.loads(data)
            except ValueError:
                self.damage.append(f"an event of kind {what} cannot be read")


def _rescued(number: int, data: str) -> Step | None:
    """The choice behind a step whose record is broken, if that much can be read."""
    try:
        raw = json.loads(data)
        chosen = {
            "number": number,
            "parent": int(raw["parent"]),
            "action": raw["action"],
            "second": int(raw.get("second", 0)),
        }
        return replace(Step.from_json(chosen), stage="chosen")
    except (TypeError, ValueError, KeyError):
        return None


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    """SQLite's and the system's complaints, in one line with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise BadInput(
                f"no space left for {place}: make room, then `kernelpro resume {place.name}`; nothing saved is lost"
            ) from None
        if "readonly" in str(error) or "unable to open" in str(error):
            raise BadInput(f"{place} cannot be written: {error}") from None
        raise BadInput(f"{place}: {error}") from None
    except sqlite3.DatabaseError as error:
        raise BadInput(
            f"{place / 'run.db'} is damaged ({error}): `sqlite3 run.db .recover` may save what is in it"
        ) from None
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror or error}") from None
