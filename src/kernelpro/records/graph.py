"""A task's operator graph as plain data, for authors without torch."""

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
    """Without the prefix `torch.`: float32, int64, ..."""
    strides: tuple[int, ...] = ()
    """Of inputs and parameters; empty: contiguous."""
    args: tuple[Any, ...] = ()
    """Plain JSON. A reference to another value is `{"value": its name}`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    """The qualified name of a parameter; the index of an input."""


@dataclass(frozen=True)
class Graph(Record):
    """All values of a task."""

    nodes: tuple[Node, ...]
    """In topological order."""
    outputs: tuple[str, ...]
    single: bool = True
    """Whether the module returns its one output directly, not in a tuple."""
