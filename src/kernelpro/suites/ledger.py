"""What a bench has found out: `results.jsonl` in its folder, a line for each answer, on disk before anything else is done.

A question is known by its content (task, candidate, options ...), so a bench that is called again asks only what has not been
answered, whatever stopped it. The last line of a key counts; a line that was cut short is asked again.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import BadInput, Cost, Record, Result


@dataclass(frozen=True)
class Entry(Record):
    """One answer."""

    key: str
    result: Result
    seconds: float = 0.0
    """For which the device was held."""
    cost: Cost = field(default_factory=Cost)
    """What the author was paid."""

    @property
    def lost(self) -> str:
        """What came between: a killed worker, a device that failed. Empty where it was the question itself that was answered."""
        return str((self.result.data or {}).get("lost", ""))

    @property
    def unsettled(self) -> bool:
        """An error for an answer, or none: asked again, it may be another."""
        return self.result.error is not None or bool(self.lost)


class Ledger:
    def __init__(self, folder: Path):
        self.folder, self.unreadable = folder, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "results.jsonl").open("a+b")
        except OSError as error:
            raise BadInput(f"--out {folder}: cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadInput(
                f"another process is at work in {folder}: wait for it, stop it, or give another --out"
            ) from None
        self.entries = self._read()

    def _read(self) -> dict[str, Entry]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if lines[-1]:
            self._write(b"\n")  # the next line must not be joined to one that was cut short
        entries = {}
        for line in filter(None, lines):
            try:
                entry = Entry.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.unreadable += 1
                continue
            entries[entry.key] = entry
        return entries

    def lacks(self, key: str, retry: bool) -> bool:
        """Whether a question is to be asked: it has no answer, or, with `retry`, one that is unsettled."""
        entry = self.entries.get(key)
        return entry is None or (retry and entry.unsettled)

    def add(self, entry: Entry) -> None:
        """Whoever returns from here knows that it is on disk."""
        self.entries[entry.key] = entry
        self._write(entry.dumps().encode() + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise BadInput(
                f"{self._file.name}: {error.strerror}; what is there is kept, call again to go on"
            ) from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
