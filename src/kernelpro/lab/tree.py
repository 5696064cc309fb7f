"""Nested inputs and outputs (tensors, lists, tuples, dicts, scalars) as a JSON spec and a list of tensors."""

from __future__ import annotations

from typing import Any

import torch

TreeSpec = dict[str, Any]


def flatten(value: Any, leaves: list[torch.Tensor]) -> TreeSpec:
    """Append the tensors of `value` to `leaves` and return the spec of its structure."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"tensor": len(leaves) - 1}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [flatten(item, leaves) for item in value]}
    if isinstance(value, dict):
        return {"dict": {str(key): flatten(item, leaves) for key, item in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a {type(value).__name__} cannot be an input or output: use tensors, numbers, lists, tuples and "
        "dicts"
    )


def unflatten(spec: TreeSpec, leaves: list[torch.Tensor]) -> Any:
    """The inverse of `flatten`."""
    ((kind, content),) = spec.items()
    if kind == "tensor":
        return leaves[content]
    if kind in ("list", "tuple"):
        items = [unflatten(item, leaves) for item in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {key: unflatten(item, leaves) for key, item in content.items()}
    return content
