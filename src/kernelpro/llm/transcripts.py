"""Stores every exchange of a run, one JSON line each, in a file that survives a crash.

`append` writes a complete line and calls fsync before it returns. Processes that share a file take turns with
flock. Readers skip a line that a power failure has truncated, and the next line starts on a new one. An
exchange is stored when it ends, however it ends. A killed process loses its exchanges in flight.

Fields: key, content_hash, format_hash, role, model, prompt_version, time, status, error, text, dollars, cost,
notes, messages. Status: answered, failed (ModelError), capped (CapReached), stopped (cancelled, or an
internal error).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from kernelpro.llm.question import CapReached, Exchange, ModelError, Question
from kernelpro.llm.secrets import redact
from kernelpro.records import BadInput, Cost

FILE = "transcripts.jsonl"
"""Name of the file in a run's folder."""


@dataclass(frozen=True)
class TranscriptEntry:
    """One stored exchange."""

    key: str
    content_hash: str
    format_hash: str
    role: str
    model: str
    status: str
    text: str
    dollars: Decimal
    cost: Cost
    notes: tuple[str, ...]
    messages: list[dict[str, Any]]
    prompt_version: str


class Transcripts:
    """A file of exchanges, which is created with the first one. `prompts`: the version of the prompts."""

    def __init__(self, path: Path, prompts: str = "") -> None:
        self.path, self._prompts = path, prompts
        self._answers: dict[tuple[str, str], TranscriptEntry] | None = None
        self._latest: dict[str, TranscriptEntry] = {}

    def append(
        self, model: str, question: Question[Any], exchange: Exchange, error: BaseException | None = None
    ) -> None:
        """Store an exchange. `error`: the exception that ended it without an answer."""
        data = {
            "key": question.key,
            "content_hash": question.content_hash,
            "format_hash": question.format_hash,
            "role": question.role,
            "model": model,
            "prompt_version": self._prompts,
            "time": time.time(),
            "status": _status(error),
            "error": "" if error is None else str(error) or type(error).__name__,
            "text": exchange.text if error is None else "",
            "dollars": str(exchange.dollars),
            "cost": exchange.cost.to_json(),
            "notes": exchange.notes,
            "messages": exchange.messages,
        }
        record = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        encoded = redact(record).encode(errors="replace") + b"\n"
        try:
            self._write(encoded)
        except OSError as failure:
            raise BadInput(
                f"{self.path} cannot be written: {failure.strerror}; free space or fix permissions, then"
                " resume"
            ) from None
        if self._answers is not None:
            self._add_to_index(_entry(json.loads(encoded)))

    def entries(self) -> Iterator[TranscriptEntry]:
        """Yield all exchanges, oldest first. Damaged lines are skipped."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as failure:
            raise BadInput(f"{self.path} cannot be read: {failure.strerror}") from None
        for part in raw.split(b"\n"):
            try:
                yield _entry(json.loads(part))
            except (ValueError, KeyError, TypeError, ArithmeticError, AttributeError):
                continue

    def find(self, question: Question[Any]) -> TranscriptEntry | None:
        """Return the answer to this exact question; None if there is none."""
        return self._index().get((question.key, question.content_hash))

    def find_key(self, key: str) -> TranscriptEntry | None:
        """Return the last answer to a question with this key, whatever its wording."""
        self._index()
        return self._latest.get(key)

    def spent(self) -> Iterator[tuple[str, str, Decimal, Cost]]:
        """Yield role, key, dollars and cost of every exchange, answered or not, for `SpendingCap.restore`."""
        return ((line.role, line.key, line.dollars, line.cost) for line in self.entries())

    def _index(self) -> dict[tuple[str, str], TranscriptEntry]:
        if self._answers is None:
            self._answers = {}
            for line in self.entries():
                self._add_to_index(line)
        return self._answers

    def _add_to_index(self, line: TranscriptEntry) -> None:
        if line.status == "answered" and self._answers is not None:
            self._answers[line.key, line.content_hash] = self._latest[line.key] = line

    def _write(self, record: bytes) -> None:
        new = not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                record = b"\n" + record
            while record:
                record = record[os.write(handle, record) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            _sync_folder(self.path.parent)


def _sync_folder(folder: Path) -> None:
    """Call fsync on a folder. A new file is durable only after that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _status(error: BaseException | None) -> str:
    if error is None:
        return "answered"
    return (
        "failed"
        if isinstance(error, ModelError)
        else "capped"
        if isinstance(error, CapReached)
        else "stopped"
    )


def _entry(data: dict[str, Any]) -> TranscriptEntry:
    return TranscriptEntry(
        key=data["key"],
        content_hash=data["content_hash"],
        format_hash=data["format_hash"],
        role=data["role"],
        model=data["model"],
        status=data["status"],
        text=data["text"],
        dollars=Decimal(data["dollars"]),
        cost=Cost.from_json(data["cost"]),
        notes=tuple(data["notes"]),
        messages=data["messages"],
        prompt_version=data.get("prompt_version", ""),
    )
