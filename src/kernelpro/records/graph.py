"""A task's operator graph as plain data: what authors without torch can read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelpro.records.base import Record


@dataclass(frozen=True)
class Node(Record):
    """One value: an input, a parameter, or what an operator gives."""

    name: str
    op: str
    """`input`, `parameter`, or an ATen overload such as `aten.linear.default`."""
    shape: tuple[int, ...]
    dtype: str
    """Without `torch.`: float32, int64, ..."""
    strides: tuple[int, ...] = ()
    """Of inputs and parameters; empty: contiguous."""
    args: tuple[Any, ...] = ()
    """Plain JSON; another value is `{"value": its name}`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    """A parameter's qualified name in the module; an input's place among the inputs."""


@dataclass(frozen=True)
class Graph(Record):
    nodes: tuple[Node, ...]
    """In an order in which they can be computed."""
    outputs: tuple[str, ...]
    single: bool = True
    """The module returns its one output bare, not in a tuple."""
