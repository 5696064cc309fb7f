"""Which methods paid off under which conditions, across runs: one SQLite file per user, shared by processes.

The file stores observations: a method, the conditions, and the logarithm of the gain. Observations are only
added, each under the hash of its content, so that resuming a run or importing a file again counts nothing
twice. Entries (equal method, bound, hardware, language and family) and their statistics are computed from
them: counts, means, wins and losses.

A query returns methods, ranked by expected gain. Each observation is weighted by how similar its conditions
are to those of the query, and the mean is shrunk towards no gain while there are few observations:

    expected = sum(weight * log gain) / (sum(weight) + prior)
    weight   = product of _WEIGHT_IF_DIFFERENT over the conditions that differ
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kernelpro.memory.shared_database import SharedDatabase
from kernelpro.memory.wording import method_key
from kernelpro.records import BadInput, Record, digest, folders

_PRIOR = 3.0
"""Acts like this number of trials without any gain under the same conditions."""
_WEIGHT_IF_DIFFERENT = {"bound": 0.5, "hardware": 0.5, "language": 0.3, "family": 0.4}
"""The language weighs most: methods are often specific to one."""
_MIN_LOG_GAIN = math.log(1.02)
"""Smallest win or loss; anything between is neither."""
_MAX_CONDITIONS = 3
_FORMAT = {"format": "kernelpro-knowledge", "version": 1}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS observations (
    id TEXT PRIMARY KEY, method TEXT NOT NULL, bound TEXT NOT NULL, hardware TEXT NOT NULL, language TEXT NOT
    NULL, family TEXT NOT NULL, gain REAL NOT NULL, conditions TEXT NOT NULL, run TEXT NOT NULL, node TEXT NOT
    NULL, date TEXT NOT NULL
)
"""


def default_path() -> Path:
    """The user's knowledge file."""
    return folders.data("knowledge.db")


@dataclass(frozen=True)
class Observation(Record):
    """One trial of a method."""

    method: str
    """One sentence."""
    bound: str
    """What limited the kernel before: a value of `Bound`."""
    hardware: str
    language: str
    family: str
    """The kind of task: matmul, normalisation, reduction, ..."""
    gain: float
    """log(speed-up); negative if the kernel became slower."""
    conditions: str = ""
    """The expected gain, why, and whether the measurement confirmed it."""
    run: str = ""
    node: str = ""
    """The step of the run: two otherwise equal trials of a run are two observations."""
    date: str = ""
    """ISO 8601."""

    def __post_init__(self) -> None:
        if not self.method.strip():
            raise ValueError("an observation must name its method")
        if not math.isfinite(self.gain):
            raise ValueError(f"the gain is not a finite number: {self.gain}")


@dataclass(frozen=True)
class KnowledgeEntry(Record):
    """All observations of one method under equal conditions."""

    method: str
    bound: str
    hardware: str
    language: str
    family: str
    count: int
    gain: float
    """Mean of log(speed-up)."""
    wins: int
    losses: int
    conditions: tuple[str, ...]
    """Conditions of the latest observations, latest first."""
    runs: int
    date: str
    """Date of the last observation."""


@dataclass(frozen=True)
class MethodAdvice(Record):
    """A method and the gain to expect from it under the queried conditions."""

    method: str
    expected: float
    """log(speed-up), shrunk towards 0."""
    count: int
    wins: int
    conditions: tuple[str, ...]


class Knowledge:
    """The knowledge base. Without a path it is disabled: it stores nothing and returns nothing."""

    def __init__(self, path: Path | None, report: Callable[[str], None] = print):
        self._database = SharedDatabase(path, _SCHEMA, report) if path else None

    @property
    def enabled(self) -> bool:
        """Whether there is a file behind it."""
        return self._database is not None

    def add(self, observations: Iterable[Observation]) -> int:
        """Store all of them or none. Returns how many were new. They are on disk when this returns."""
        rows = [_row(observation) for observation in observations]
        if not rows or not self._database:
            return 0
        marks = ", ".join("?" * len(rows[0]))

        def insert(db: sqlite3.Connection) -> int:
            before = db.total_changes
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(f"INSERT OR IGNORE INTO observations VALUES ({marks})", rows)
            return db.total_changes - before

        return self._database.run(insert)

    def query(self, bound: str, hardware: str, family: str, language: str, limit: int) -> list[MethodAdvice]:
        """Methods by expected gain, best first."""
        setting = {"bound": bound, "hardware": hardware, "family": family, "language": language}
        methods: dict[str, list[tuple[KnowledgeEntry, float]]] = {}
        for key, entry in self._keyed_entries():
            differing = [name for name in setting if getattr(entry, name) != setting[name]]
            weight = math.prod(_WEIGHT_IF_DIFFERENT[name] for name in differing)
            methods.setdefault(key, []).append((entry, weight))
        advice = []
        for group in methods.values():
            group.sort(key=lambda pair: -pair[1])
            total = sum(entry.count * weight for entry, weight in group)
            expected = sum(entry.gain * entry.count * weight for entry, weight in group) / (total + _PRIOR)
            conditions = dict.fromkeys(text for entry, _ in group for text in entry.conditions)
            advice.append(
                MethodAdvice(
                    method=group[0][0].method,
                    expected=expected,
                    count=sum(entry.count for entry, _ in group),
                    wins=sum(entry.wins for entry, _ in group),
                    conditions=tuple(conditions)[:_MAX_CONDITIONS],
                )
            )
        return sorted(advice, key=lambda item: (-item.expected, item.method))[:limit]

    def entries(self) -> list[KnowledgeEntry]:
        """All entries, best first."""
        return sorted(
            (entry for _, entry in self._keyed_entries()), key=lambda entry: (-entry.gain, entry.method)
        )

    def clear(self) -> int:
        """Delete everything. Returns how many observations were deleted."""
        return (
            self._database.run(lambda db: db.execute("DELETE FROM observations").rowcount)
            if self._database
            else 0
        )

    def export_json(self, path: Path) -> int:
        """Write all observations to a file, atomically. Returns how many."""
        observations = [observation.to_json() for observation in self._observations()]
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            partial.write_text(
                json.dumps(_FORMAT | {"observations": observations}, indent=1) + "\n", encoding="utf-8"
            )
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise BadInput(f"knowledge cannot be exported to {path}: {error.strerror}") from None
        return len(observations)

    def import_json(self, path: Path) -> int:
        """Add the observations of a file. Returns how many were new. A malformed file is rejected as a
        whole."""
        self._require()
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"knowledge file cannot be read: {path} ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"knowledge file is not JSON: {path} ({error})") from None
        if (
            not isinstance(data, dict)
            or data.get("format") != _FORMAT["format"]
            or not isinstance(data.get("observations"), list)
        ):
            raise BadInput(f"not a knowledge file, as `kernelpro knowledge` exports it: {path}")
        if data.get("version") != _FORMAT["version"]:
            raise BadInput(
                f"knowledge file {path} has version {data.get('version')!r}; "
                f"this KernelPro reads version {_FORMAT['version']}"
            )
        return self.add(
            [_observation(item, f"{path}: observation {i}") for i, item in enumerate(data["observations"], 1)]
        )

    def _require(self) -> SharedDatabase:
        if self._database is None:
            raise BadInput("the knowledge base is disabled")
        return self._database

    def _observations(self) -> list[Observation]:
        select = f"SELECT {', '.join(_FIELDS)} FROM observations ORDER BY date, rowid"
        rows = self._require().run(lambda db: db.execute(select).fetchall())
        return [Observation(*row) for row in rows]

    def _keyed_entries(self) -> list[tuple[str, KnowledgeEntry]]:
        """Entries with the keys of their methods; the last observation gives the wording."""
        if not self.enabled:
            return []
        groups: dict[tuple[str, ...], list[Observation]] = {}
        for item in self._observations():
            key = (method_key(item.method), item.bound, item.hardware, item.language, item.family)
            groups.setdefault(key, []).append(item)
        return [(key[0], _entry(group)) for key, group in groups.items()]


_FIELDS = tuple(field.name for field in fields(Observation))


def _row(observation: Observation) -> tuple[Any, ...]:
    values = {name: getattr(observation, name) for name in _FIELDS}
    identity = digest("observation", json.dumps(values, sort_keys=True))
    return (identity, *values.values())


def _observation(item: Any, where: str) -> Observation:
    if not isinstance(item, dict):
        raise BadInput(f"{where} is not an object")
    for name in _FIELDS:
        expected_type: Any = (int, float) if name == "gain" else str
        if name not in item or not isinstance(item[name], expected_type) or isinstance(item[name], bool):
            raise BadInput(f"{where}: {name} is missing or is not {'a number' if name == 'gain' else 'text'}")
    try:
        return Observation.from_json(item | {"gain": float(item["gain"])})
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {error}") from None


def _entry(group: list[Observation]) -> KnowledgeEntry:
    last = group[-1]
    return KnowledgeEntry(
        method=last.method,
        bound=last.bound,
        hardware=last.hardware,
        language=last.language,
        family=last.family,
        count=len(group),
        gain=math.fsum(item.gain for item in group) / len(group),
        wins=sum(item.gain > _MIN_LOG_GAIN for item in group),
        losses=sum(item.gain < -_MIN_LOG_GAIN for item in group),
        conditions=tuple(dict.fromkeys(item.conditions for item in reversed(group) if item.conditions))[
            :_MAX_CONDITIONS
        ],
        runs=len({item.run for item in group}),
        date=last.date,
    )
