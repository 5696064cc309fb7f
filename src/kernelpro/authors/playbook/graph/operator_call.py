"""One operator of the graph as a handler sees it, with its arguments resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.graph.value_ops import scalar
from kernelpro.authors.playbook.graph.values import Value
from kernelpro.records import Node

Result = Value | tuple[Value, ...]
Handler = Callable[["OperatorCall"], Result]
"""Lowers one operator."""

_NUMBERS = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class OperatorCall:
    """An operator with its arguments: tensors become values, other arguments stay as they are."""

    def __init__(self, node: Node, values: Mapping[str, Result]):
        self.node, self._values = node, values
        self.shape, self.dtype = node.shape, node.dtype
        """Shape and dtype of the result."""
        self.name = node.op.split(".")[1] if "." in node.op else node.op
        """The operator's name without namespace and overload: `softmax` for `aten.softmax.int`."""
        self.overload = node.op.rpartition(".")[2]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, by name if it was passed by name, else by position."""
        if name in self.node.kwargs:
            return self._resolve(self.node.kwargs[name])
        return self._resolve(self.node.args[position]) if position < len(self.node.args) else default

    def value(self, position: int, name: str = "") -> Value:
        """A tensor argument; a number becomes a value without dimensions."""
        argument = self.get(position, name)
        return argument if isinstance(argument, Value) else scalar(argument)

    def optional(self, position: int, name: str) -> Value | None:
        """A tensor argument that may be None or missing."""
        argument = self.get(position, name)
        return argument if isinstance(argument, Value) else None

    def dim(self, position: int, name: str, default: int | None = None) -> int:
        """A dimension of the first argument, counted from the front."""
        dim: int = self.get(position, name, default)
        return dim % len(self.value(0).shape)

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, dict) and "value" in argument:
            return self._values[argument["value"]]
        if isinstance(argument, list):
            return [self._resolve(item) for item in argument]
        return _NUMBERS.get(argument, argument) if isinstance(argument, str) else argument

    def unsupported(self, reason: str) -> NoProposal:
        """The error for a variant of the operator that the playbook cannot lower."""
        return NoProposal(f"the playbook does not support {self.node.op} {reason}")
