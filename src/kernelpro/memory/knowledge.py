"""What paid off where, across runs: one SQLite file of the user's that several processes may write at once.

Stored are observations: a method, where it was tried, the logarithm of the gain that followed. They are only ever added,
each under the hash of its content, so that adding one twice, resuming a run or importing a file again counts it once.
Entries (equal method, bound, hardware, language and family) and their counts, means, wins and losses are computed from
them.

A question is answered by methods, ranked by the gain to be expected there. Each observation weighs as much as its
circumstances resemble those of the question, and the mean is shrunk towards no gain while it rests on little:

    expected = sum(weight * log gain) / (sum(weight) + prior),    weight = product of _UNLIKE over what differs
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

from kernelpro.memory.ledger import Ledger
from kernelpro.memory.wording import method_key
from kernelpro.records import BadInput, Record, digest, folders

_PRIOR = 3.0
"""As if so many trials under the same circumstances had gained nothing."""
_UNLIKE = {"bound": 0.5, "hardware": 0.5, "language": 0.3, "family": 0.4}
"""Weight of an observation that differs in this. A language differs most: its methods are often its own."""
_CLEAR = math.log(1.02)
"""A win or a loss; what is nearer to nothing is neither."""
_MOST_CONDITIONS = 3
_FORMAT = {"format": "kernelpro-knowledge", "version": 1}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS observations (
    id TEXT PRIMARY KEY, method TEXT NOT NULL, bound TEXT NOT NULL, hardware TEXT NOT NULL,
    language TEXT NOT NULL, family TEXT NOT NULL, gain REAL NOT NULL, conditions TEXT NOT NULL, run TEXT NOT NULL,
    node TEXT NOT NULL, date TEXT NOT NULL
)
"""


def default_path() -> Path:
    return folders.data("knowledge.db")


@dataclass(frozen=True)
class Observation(Record):
    """One trial of a method."""

    method: str
    """In a sentence."""
    bound: str
    """What limited the kernel before: a value of Bound."""
    hardware: str
    language: str
    family: str
    """Of the task's operators: matmul, normalisation, reduction, ..."""
    gain: float
    """log(times as fast as before); negative where it became slower."""
    conditions: str = ""
    """Under which it is said to hold: what was expected of it and why, and whether that was confirmed."""
    run: str = ""
    node: str = ""
    """Which candidate of the run: two trials that are otherwise alike are two."""
    date: str = ""
    """ISO 8601."""

    def __post_init__(self) -> None:
        if not self.method.strip():
            raise ValueError("an observation names its method")
        if not math.isfinite(self.gain):
            raise ValueError(f"the gain is not a finite number: {self.gain}")


@dataclass(frozen=True)
class Entry(Record):
    """All observations of one method under equal circumstances."""

    method: str
    bound: str
    hardware: str
    language: str
    family: str
    count: int
    gain: float
    """Mean of the logarithms."""
    wins: int
    losses: int
    conditions: tuple[str, ...]
    """The latest."""
    runs: int
    date: str
    """Of the last observation."""


@dataclass(frozen=True)
class Advice(Record):
    """A method and what may be expected of it under the circumstances asked for."""

    method: str
    expected: float
    """log(times as fast), shrunk."""
    count: int
    wins: int
    losses: int
    same: int
    """Of the count: observed on the same hardware and family."""
    conditions: tuple[str, ...]


class Knowledge:
    """Without a path it is switched off: it takes nothing in and answers nothing."""

    def __init__(self, path: Path | None, report: Callable[[str], None] = print):
        self._file = Ledger(path, _SCHEMA, report) if path else None

    @property
    def enabled(self) -> bool:
        return self._file is not None

    def add(self, observations: Iterable[Observation]) -> int:
        """Store them, all or none; returns how many were new. When this returns they are on disk."""
        rows = [_row(observation) for observation in observations]
        if not rows or not self._file:
            return 0
        marks = ", ".join("?" * len(rows[0]))

        def insert(db: sqlite3.Connection) -> int:
            before = db.total_changes
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(f"INSERT OR IGNORE INTO observations VALUES ({marks})", rows)
            return db.total_changes - before

        return self._file.do(insert)

    def query(self, bound: str, hardware: str, family: str, language: str, limit: int) -> list[Advice]:
        """Methods by expected gain, the best first; those that are expected to harm come last."""
        asked = {"bound": bound, "hardware": hardware, "family": family, "language": language}
        methods: dict[str, list[tuple[Entry, float]]] = {}
        for key, entry in self._entries():
            weight = math.prod(
                unlike for name, unlike in _UNLIKE.items() if getattr(entry, name) != asked[name]
            )
            methods.setdefault(key, []).append((entry, weight))
        advice = []
        for known in methods.values():
            known.sort(key=lambda pair: -pair[1])
            total = sum(entry.count * weight for entry, weight in known)
            expected = sum(entry.gain * entry.count * weight for entry, weight in known) / (total + _PRIOR)
            conditions = dict.fromkeys(text for entry, _ in known for text in entry.conditions)
            advice.append(
                Advice(
                    method=known[0][0].method,
                    expected=expected,
                    count=sum(entry.count for entry, _ in known),
                    wins=sum(entry.wins for entry, _ in known),
                    losses=sum(entry.losses for entry, _ in known),
                    same=sum(
                        entry.count
                        for entry, _ in known
                        if (entry.hardware, entry.family) == (hardware, family)
                    ),
                    conditions=tuple(conditions)[:_MOST_CONDITIONS],
                )
            )
        return sorted(advice, key=lambda one: (-one.expected, one.method))[:limit]

    def show(self) -> list[Entry]:
        """All entries, the best first."""
        return sorted((entry for _, entry in self._entries()), key=lambda entry: (-entry.gain, entry.method))

    def forget(self) -> int:
        """Delete everything; returns how many observations there were."""
        return self._file.do(lambda db: db.execute("DELETE FROM observations").rowcount) if self._file else 0

    def export_json(self, path: Path) -> int:
        """Write all observations to a file; returns how many. A file that was there is replaced at once or not at all."""
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
        """Add what a file holds; returns how many observations were new. A malformed file is refused whole."""
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
            raise BadInput(f"not an export of KernelPro's knowledge: {path}")
        if data.get("version") != _FORMAT["version"]:
            raise BadInput(
                f"knowledge file of version {data.get('version')!r}: {path}; this is version {_FORMAT['version']}"
            )
        return self.add(
            [_observation(item, f"{path}: observation {i}") for i, item in enumerate(data["observations"], 1)]
        )

    def _require(self) -> Ledger:
        if self._file is None:
            raise BadInput("the knowledge base is switched off")
        return self._file

    def _observations(self) -> list[Observation]:
        select = f"SELECT {', '.join(_NAMES)} FROM observations ORDER BY date, rowid"
        rows = self._require().do(lambda db: db.execute(select).fetchall())
        return [Observation(*row) for row in rows]

    def _entries(self) -> list[tuple[str, Entry]]:
        """With the methods' keys; an entry speaks in the words of its last observation."""
        if not self.enabled:
            return []
        groups: dict[tuple[str, ...], list[Observation]] = {}
        for one in self._observations():
            groups.setdefault(
                (method_key(one.method), one.bound, one.hardware, one.language, one.family), []
            ).append(one)
        return [(key[0], _entry(group)) for key, group in groups.items()]


_NAMES = tuple(field.name for field in fields(Observation))


def _row(observation: Observation) -> tuple[Any, ...]:
    values = {name: getattr(observation, name) for name in _NAMES}
    identity = digest("observation", json.dumps(values, sort_keys=True))
    return (identity, *values.values())


def _observation(item: Any, where: str) -> Observation:
    if not isinstance(item, dict):
        raise BadInput(f"{where} is not an object")
    for name in _NAMES:
        wanted: Any = (int, float) if name == "gain" else str
        if name not in item or not isinstance(item[name], wanted) or isinstance(item[name], bool):
            raise BadInput(f"{where}: {name} is missing or is not {'a number' if name == 'gain' else 'text'}")
    try:
        return Observation.from_json(item | {"gain": float(item["gain"])})
    except (ValueError, OverflowError) as error:
        raise BadInput(f"{where}: {error}") from None


def _entry(group: list[Observation]) -> Entry:
    last = group[-1]
    return Entry(
        method=last.method,
        bound=last.bound,
        hardware=last.hardware,
        language=last.language,
        family=last.family,
        count=len(group),
        gain=math.fsum(one.gain for one in group) / len(group),
        wins=sum(one.gain > _CLEAR for one in group),
        losses=sum(one.gain < -_CLEAR for one in group),
        conditions=tuple(dict.fromkeys(one.conditions for one in reversed(group) if one.conditions))[
            :_MOST_CONDITIONS
        ],
        runs=len({one.run for one in group}),
        date=last.date,
    )
