"""The results of a benchmark: `results.jsonl` in its folder, one line per result, flushed to disk at once.

A job is identified by its content (task, candidate, options ...), so a benchmark that is started again runs
only jobs without a result. The last line with a key counts; the job of a truncated line runs again.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from kernelpro.records import BadInput, Cost, Record, Result


@dataclass(frozen=True)
class LoggedResult(Record):
    """The result of one job or search."""

    key: str
    result: Result
    seconds: float = 0.0
    """Device time."""
    seconds_by_use: dict[str, float] = field(default_factory=dict)
    """Device time of a search by use: probe, study, candidates, final judging."""
    cost: Cost = field(default_factory=Cost)
    """Cost of the language models."""
    author: str = ""
    """The author of the kernel that the verdict is about."""
    reason: str = ""
    """Why a search ended without a verdict."""
    no_gain: str = ""
    """Set if a search found nothing faster than the baselines: a text that names whose code its result is."""
    problem: str = ""
    """The label of the problem."""

    @property
    def failure(self) -> str:
        """A failure of a worker or device that prevented the job; empty if the job itself was completed."""
        return self.result.lost

    @property
    def should_retry(self) -> bool:
        """Whether the job may succeed when it is run again."""
        return self.result.error is not None or bool(self.failure)


class ResultsLog:
    """The results in a folder, locked against other processes while it is open."""

    def __init__(self, folder: Path):
        self.folder, self.unreadable_lines = folder, 0
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
                f"another process uses {folder}: wait for it, stop it, or give another --out"
            ) from None
        self.entries = self._read()

    def _read(self) -> dict[str, LoggedResult]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if lines[-1]:
            self._write(b"\n")  # so that the next line is not appended to a truncated one
        entries = {}
        for line in filter(None, lines):
            try:
                entry = LoggedResult.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.unreadable_lines += 1
                continue
            entries[entry.key] = entry
        return entries

    def is_missing(self, key: str, retry: bool) -> bool:
        """Whether a job has no result yet or, with `retry`, one that may change."""
        entry = self.entries.get(key)
        return entry is None or (retry and entry.should_retry)

    def add(self, entry: LoggedResult) -> None:
        """Add a result. It is on disk when this returns."""
        self.entries[entry.key] = entry
        self._write(entry.dumps().encode() + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise BadInput(
                f"{self._file.name}: {error.strerror}; results so far are kept; rerun the command to continue"
            ) from None

    def close(self) -> None:
        """Close the file and release the lock."""
        self._file.close()

    def __enter__(self) -> ResultsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
