"""Nested inputs and outputs (tensors, lists, tuples, dicts, scalars) as a JSON form and a list of tensors."""

from __future__ import annotations

from typing import Any

import torch

Form = dict[str, Any]


def pack(value: Any, leaves: list[torch.Tensor]) -> Form:
    """The form of `value`; its tensors are appended to `leaves`."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"tensor": len(leaves) - 1}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [pack(item, leaves) for item in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): pack(item, leaves) for key, item in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a {type(value).__name__} can be neither input nor output: use tensors, numbers, lists, tuples and dicts"
    )


def unpack(form: Form, leaves: list[torch.Tensor]) -> Any:
    """The inverse of `pack`."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return leaves[content]
    if kind in ("list", "tuple"):
        items = [unpack(item, leaves) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: unpack(item, leaves) for key, item in content.items()}
    return content
