"""A dataclass from a model's words: every fault is found at once and said in words."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from kernelpro.llm.question import Malformed

D = TypeVar("D")

_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


def fill(kind: type[D], data: Mapping[str, Any], from_words: bool = False) -> D:
    """An instance of a dataclass. `from_words`: values are text (`12`, `yes`, `a, b`) and are read as the field's type."""
    values, faults = _fields(kind, data, from_words, "")
    if faults:
        raise Malformed("; ".join(faults))
    try:
        return kind(**values)
    except ValueError as error:
        raise Malformed(str(error)) from None


def describe(kind: Any) -> list[tuple[str, str, bool]]:
    """(name, type in words, whether it must be given) of each field."""
    hints = typing.get_type_hints(kind)
    return [(field.name, _words(hints[field.name]), _required(field)) for field in dataclasses.fields(kind)]


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _fields(kind: Any, data: Mapping[str, Any], from_words: bool, prefix: str) -> tuple[dict[str, Any], list[str]]:
    hints, values, faults = typing.get_type_hints(kind), dict[str, Any](), list[str]()
    fields = {field.name: field for field in dataclasses.fields(kind)}
    faults += [f"{prefix}{name} is missing" for name, field in fields.items() if _required(field) and name not in data]
    for name, value in data.items():
        if name not in fields:
            faults.append(f"{prefix}{name} is not known here (known: {', '.join(fields)})")
            continue
        try:
            values[name] = _value(hints[name], value, from_words)
        except Malformed as fault:
            faults.append(f"{prefix}{name} {fault}")
    return values, faults


def _value(kind: Any, value: Any, from_words: bool) -> Any:
    """Raises Malformed with the end of a sentence that begins with the field's name."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [arm for arm in arguments if arm is not type(None)]
        if value is None or (from_words and value.strip().lower() in ("", "none")):
            return None
        return _value(inner[0], value, from_words)
    if origin in (list, tuple):
        items = [part.strip() for part in value.split(",") if part.strip()] if from_words else value
        if not isinstance(items, list):
            raise Malformed(f"must be {_words(kind)}")
        return origin(_value(arguments[0], item, from_words) for item in items)
    if origin is dict and not from_words and isinstance(value, dict):
        return {name: _value(arguments[1], item, from_words) for name, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        values, faults = _fields(kind, value, from_words, "")
        if faults:
            raise Malformed(f"is wrong inside: {'; '.join(faults)}")
        return kind(**values) if isinstance(kind, type) else None
    return _plain(kind, value.strip() if from_words else value, from_words)


def _plain(kind: Any, value: Any, from_words: bool) -> Any:
    choices = _choices(kind)
    if choices:
        for choice in choices:
            known = choice.value if isinstance(choice, enum.Enum) else choice
            if known == value or (from_words and str(known).lower() == str(value).lower()):
                return choice
    elif kind is Any or (kind is str and isinstance(value, str)):
        return value
    elif kind is bool:
        if from_words and value.lower() in _YES_NO:
            return _YES_NO[value.lower()]
        if isinstance(value, bool):
            return value
    elif kind in (int, float):
        if from_words:
            try:
                return kind(value.replace("_", ""))
            except ValueError:
                pass
        elif isinstance(value, (int, kind)) and not isinstance(value, bool):
            return kind(value)
    raise Malformed(f"must be {_words(kind)}, not {str(value)[:60]!r}")


def _choices(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else ()


def _words(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if choices := _choices(kind):
        return "one of " + ", ".join(str(c.value if isinstance(c, enum.Enum) else c) for c in choices)
    if origin in (typing.Union, types.UnionType):
        return _words(next(arm for arm in arguments if arm is not type(None))) + ", or none"
    if origin in (list, tuple):
        return f"a list, each item {_words(arguments[0])}"
    if origin is dict:
        return f"a table, each value {_words(arguments[1])}"
    if dataclasses.is_dataclass(kind):
        return "a table with " + ", ".join(name for name, _, _ in describe(kind))
    return {str: "text", int: "a whole number", float: "a number", bool: "yes or no"}.get(kind, "any value")
