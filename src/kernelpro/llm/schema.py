"""The subset of JSON schema for tool parameters, and the check of arguments against it.

Supported keywords: type, description, properties, required, items, enum, minimum, maximum, minLength,
maxLength, maxItems, default. An object accepts only declared properties. A schema with any other keyword is
rejected when the tool is created, so that schemas promise nothing that is not checked.
"""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_COMMON_KEYWORDS = {"type", "description", "enum", "default"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
}


def check(schema: dict[str, Any], where: str) -> None:
    """Raise ValueError if a schema uses a keyword that `violations` does not check."""
    kind = schema.get("type")
    if kind not in _TYPES:
        raise ValueError(f"{where}: type must be one of {', '.join(_TYPES)}, not {kind!r}")
    if unknown := set(schema) - _COMMON_KEYWORDS - _KEYWORDS[kind]:
        raise ValueError(f"{where}: unsupported keywords for type {kind}: {', '.join(sorted(unknown))}")
    if schema.get("additionalProperties", False) is not False:
        raise ValueError(f"{where}: additionalProperties must be false")
    for name, inner in schema.get("properties", {}).items():
        check(inner, f"{where}.{name}")
    if undeclared := set(schema.get("required", ())) - set(schema.get("properties", {})):
        raise ValueError(f"{where}: required but not declared: {', '.join(sorted(undeclared))}")
    if kind == "array":
        check(schema.get("items", {}), f"{where}[]")


def violations(schema: dict[str, Any], value: Any, where: str = "") -> list[str]:
    """Return the faults of a value, one line each; empty if it is valid."""
    kind: str = schema["type"]
    name = where or "the arguments"
    fits = isinstance(value, _TYPES[kind])
    if not fits or (isinstance(value, bool) and kind != "boolean"):
        return [f"{name} must be of type {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{name} must be one of {', '.join(map(repr, schema['enum']))}"]
    if kind == "object":
        return _object_violations(schema, value, where)
    if kind == "array":
        inner = [
            fault
            for i, item in enumerate(value)
            for fault in violations(schema["items"], item, f"{where}[{i}]")
        ]
        return (
            [f"{name} has more than {schema['maxItems']} items"]
            if len(value) > schema.get("maxItems", len(value))
            else inner
        )
    return _range_violations(schema, value, name)


def _object_violations(schema: dict[str, Any], value: dict[str, Any], where: str) -> list[str]:
    prefix, declared = f"{where}." if where else "", schema.get("properties", {})
    missing = [f"{prefix}{name} is missing" for name in schema.get("required", ()) if name not in value]
    unknown = [f"{prefix}{name} is not a parameter" for name in value if name not in declared]
    known = [
        fault
        for name in value
        if name in declared
        for fault in violations(declared[name], value[name], prefix + name)
    ]
    return missing + unknown + known


def _range_violations(schema: dict[str, Any], value: Any, name: str) -> list[str]:
    size, unit, low, high = value, "", "minimum", "maximum"
    if isinstance(value, str):
        size, unit, low, high = len(value), " characters long", "minLength", "maxLength"
    if low in schema and size < schema[low]:
        return [f"{name} must be at least {schema[low]}{unit}"]
    if high in schema and size > schema[high]:
        return [f"{name} must be at most {schema[high]}{unit}"]
    return []
