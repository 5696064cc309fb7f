"""What all records share: JSON both ways, content hashes, and the one exception for bad input."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from typing import Any, TypeVar

R = TypeVar("R", bound="Record")


class BadInput(Exception):
    """What a person gave us cannot be used. The message is one line: what, where, what to do."""


def digest(*parts: str | bytes) -> str:
    """Content hash of a sequence of strings; the sequence, not its concatenation, is what is hashed."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()[:24]


def _decode(kind: Any, value: Any) -> Any:
    """Build `kind` (a type annotation) from plain JSON data."""
    if value is None or kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [arm for arm in typing.get_args(kind) if arm is not type(None)]
        return _decode(inner[0], value) if len(inner) == 1 else value
    if origin in (list, tuple):
        return origin(_decode(typing.get_args(kind)[0], item) for item in value)
    if origin is dict:
        return {k: _decode(typing.get_args(kind)[1], v) for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return value


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
def _kinds(cls: Any) -> dict[str, Any]:
    """Annotations of a record's fields; worked out once, since that costs more than a small record's decoding."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


class Record:
    """Base of all records: `to_json` gives plain data, `from_json` takes it back and ignores unknown keys."""

    def to_json(self) -> dict[str, Any]:
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls: type[R], data: dict[str, Any]) -> R:
        kinds = _kinds(typing.cast(Any, cls))
        return cls(**{k: _decode(kinds[k], v) for k, v in data.items() if k in kinds})

    def dumps(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))
