"""What all records share: JSON encoding and decoding, content hashes, and the exception for bad input."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import hashlib
import json
import traceback
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R", bound="Record")


class BadInput(Exception):
    """The user's input cannot be used. The message is one line: what, where, what to do."""


class NotScorable(BadInput):
    """A wrong kernel could pass the judge's checks of this task; `reason` says how."""

    def __init__(self, reason: str):
        super().__init__(f"this task cannot be scored: {reason}")
        self.reason = reason


class InternalError(BadInput):
    """A bug of KernelPro prevented the work. The message is one line that asks the user for a report."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """` (did you mean X?)` if a choice is spelled similarly, else empty."""
    similar = difflib.get_close_matches(name, list(choices), 1)
    return f" (did you mean {similar[0]}?)" if similar else ""


def describe_bug(error: BaseException) -> str:
    """The message of an InternalError: the exception, where it was raised, and what to do."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"internal error of KernelPro: {what}{where}; please report it with the traceback in the error output"
    )


def digest(*parts: str | bytes) -> str:
    """The content hash of a sequence of strings. Lengths are hashed too, so `("ab", "c")` and `("a", "bc")`
    have different hashes."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:24]


Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader | None:
    """The function that decodes JSON data to a value of this type; None if the JSON data is the value.

    Cached by type: opening a run reads thousands of records, and inspecting annotations costs more than
    decoding.
    """
    origin = typing.get_origin(kind)
    arms = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [arm for arm in arms if arm is not type(None)]
        return _optional_reader(inner[0]) if len(inner) == 1 else _union_reader(inner)
    if origin in (list, tuple):
        element = _reader(arms[0])
        return (lambda value: origin(map(element, value))) if element else typing.cast(Reader, origin)
    if origin is dict:
        item = _reader(arms[1])
        return (lambda value: {k: item(v) for k, v in value.items()}) if item else None
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    return None


def _optional_reader(kind: Any) -> Reader | None:
    """The decoder of an optional value. An empty JSON object decodes to None if the value is a record."""
    read = _reader(kind)
    if read is not None and isinstance(kind, type) and issubclass(kind, Record):
        return lambda value: read(value) if value else None
    return read


def _union_reader(arms: list[Any]) -> Reader | None:
    """The decoder of a union of records, whose field `kind` names the type; None for other unions."""
    if not all(isinstance(arm, type) and issubclass(arm, Record) for arm in arms):
        return None
    by_kind = {next(f.default for f in dataclasses.fields(arm) if f.name == "kind"): arm for arm in arms}
    return lambda value: by_kind[value["kind"]].from_json(value)


def _encode(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None if value != value else (1e308 if value > 0 else -1e308)
    return value


@functools.cache
def _readers(cls: Any) -> dict[str, Reader | None]:
    hints = typing.get_type_hints(cls)
    return {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}


class Record:
    """Base of all records."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain data. Infinities become +-1e308, NaN becomes None."""
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls: type[R], data: dict[str, Any]) -> R:
        """Inverse of `to_json`. Unknown keys are ignored; missing keys get the field's default."""
        values = {}
        for name, read in _readers(typing.cast(Any, cls)).items():
            if name in data:
                value = data[name]
                values[name] = value if read is None or value is None else read(value)
        return cls(**values)

    def dumps(self) -> str:
        """The record as JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    def nondefault_json(self) -> str:
        """JSON text of the fields that differ from their defaults. Content hashes use it, so that they do not
        change when a later version adds a field."""
        return json.dumps(_nondefault(self), separators=(",", ":"))


def _nondefault(record: Record) -> dict[str, Any]:
    values = {}
    for f in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        if value != default:
            values[f.name] = _nondefault(value) if isinstance(value, Record) else _encode(value)
    return values
