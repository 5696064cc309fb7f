"""Every exchange of a run, one JSON line each, in a file that survives whatever ends the process.

A line is written whole and synchronised before `append` returns. Processes that share a file take turns. A line that a
power cut tore is left out when reading, and the next one does not stick to it. An exchange is kept when it ends, however
it ends; a process that is killed loses the exchanges that were in flight.

    {"key", "content", "shape", "role", "model", "prompts", "time", "status", "error", "text", "money", "cost", "notes", "messages"}

prompts: their version, where whoever asks has one.
status: answered; failed (ModelError); capped (CapReached); stopped (cancelled, or an error of ours).
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
"""In a run's folder."""


@dataclass(frozen=True)
class Line:
    """One exchange, as it was kept."""

    key: str
    content: str
    shape: str
    role: str
    model: str
    status: str
    text: str
    money: Decimal
    cost: Cost
    notes: tuple[str, ...]
    messages: list[dict[str, Any]]
    prompts: str


class Transcripts:
    """A file of exchanges; made when the first one is kept. `prompts` is the version of those that are asked from now on."""

    def __init__(self, path: Path, prompts: str = "") -> None:
        self.path, self._prompts = path, prompts
        self._answers: dict[tuple[str, str], Line] | None = None
        self._latest: dict[str, Line] = {}

    def append(
        self, model: str, question: Question[Any], exchange: Exchange, error: BaseException | None = None
    ) -> None:
        """Keep an exchange; `error` is what ended it, where there is no answer."""
        data = {
            "key": question.key,
            "content": question.content,
            "shape": question.shape,
            "role": question.role,
            "model": model,
            "prompts": self._prompts,
            "time": time.time(),
            "status": _status(error),
            "error": "" if error is None else str(error) or type(error).__name__,
            "text": exchange.text if error is None else "",
            "money": str(exchange.money),
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
                f"{self.path} cannot be written: {failure.strerror}; answers would be lost"
            ) from None
        if self._answers is not None:
            self._learn(_line(json.loads(encoded)))

    def lines(self) -> Iterator[Line]:
        """All exchanges, oldest first; none where there is no file. A damaged line is left out."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as failure:
            raise BadInput(f"{self.path} cannot be read: {failure.strerror}") from None
        for part in raw.split(b"\n"):
            try:
                yield _line(json.loads(part))
            except (ValueError, KeyError, TypeError, ArithmeticError, AttributeError):
                continue

    def find(self, question: Question[Any]) -> Line | None:
        """The answer to this very question, if there was one."""
        return self._index().get((question.key, question.content))

    def find_key(self, key: str) -> Line | None:
        """The last answer to a question of this key, whatever its wording."""
        self._index()
        return self._latest.get(key)

    def spent(self) -> Iterator[tuple[str, str, Decimal, Cost]]:
        """What was spent, answered or not: role, key, money, the rest. For `Purse.recall`."""
        return ((line.role, line.key, line.money, line.cost) for line in self.lines())

    def _index(self) -> dict[tuple[str, str], Line]:
        if self._answers is None:
            self._answers = {}
            for line in self.lines():
                self._learn(line)
        return self._answers

    def _learn(self, line: Line) -> None:
        if line.status == "answered" and self._answers is not None:
            self._answers[line.key, line.content] = self._latest[line.key] = line

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
    """A new file is durable only once its folder is."""
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


def _line(data: dict[str, Any]) -> Line:
    return Line(
        key=data["key"],
        content=data["content"],
        shape=data["shape"],
        role=data["role"],
        model=data["model"],
        status=data["status"],
        text=data["text"],
        money=Decimal(data["money"]),
        cost=Cost.from_json(data["cost"]),
        notes=tuple(data["notes"]),
        messages=data["messages"],
        prompts=data.get("prompts", ""),
    )
