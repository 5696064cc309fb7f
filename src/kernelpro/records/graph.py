"""A task's operator graph as plain data, for authors that do not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelpro.records.base import Record


@dataclass(frozen=True)
class Node(Record):
    """One value: an input, a parameter, or the result of an operator."""

    name: str
    op: str
    """`input`, `parameter`, or an ATen overload such as `aten.linear.default`."""
    shape: tuple[int, ...]
    dtype: str
    """torch's dtype without the prefix `torch.`: float32, int64, ..."""
    strides: tuple[int, ...] = ()
    """Strides of an input or parameter, in elements; empty: contiguous."""
    args: tuple[Any, ...] = ()
    """The operator's positional arguments as JSON. `{"value": NAME}` refers to another node."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """The operator's keyword arguments, in the same form."""
    where: str = ""
    """The qualified name of a parameter, or the index of an input."""


@dataclass(frozen=True)
class Graph(Record):
    """All values of a task."""

    nodes: tuple[Node, ...]
    """In topological order."""
    outputs: tuple[str, ...]
    """Names of the nodes that the module returns."""
    single: bool = True
    """Whether the module returns its only output directly, not in a tuple."""
