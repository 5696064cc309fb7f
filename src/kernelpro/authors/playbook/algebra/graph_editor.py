"""A graph that rules can change: look up nodes and their users, add nodes before others, replace nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kernelpro.records import Graph, Node

ROUNDED = ("float32", "float64", "bfloat16")
"""Types in which a sum may be reordered; not float16, which overflows too easily."""


@dataclass(frozen=True)
class Rewrite:
    """One applied rule."""

    rule: str
    reason: str
    """One sentence: what is computed instead, and why that is the same."""


class GraphEditor:
    """The nodes of a graph in topological order."""

    def __init__(self, graph: Graph):
        self._nodes, self._single = list(graph.nodes), graph.single
        self.outputs = list(graph.outputs)
        self._by_name = {node.name: node for node in self._nodes}
        self._count = 0

    @property
    def operators(self) -> list[Node]:
        """All nodes but inputs and parameters, each before its operands."""
        return [node for node in reversed(self._nodes) if node.op not in ("input", "parameter")]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return self._by_name[name]

    def argument(self, node: Node, position: int, name: str = "", default: Any = None) -> Any:
        """An argument by name or position, as JSON (records.Node)."""
        if name in node.kwargs:
            return node.kwargs[name]
        return node.args[position] if position < len(node.args) else default

    def operand(self, node: Node, position: int, name: str = "") -> Node | None:
        """A tensor argument; None if the argument is a number or missing."""
        value = self.argument(node, position, name)
        return self._by_name[value["value"]] if isinstance(value, dict) and "value" in value else None

    def users(self, node: Node) -> list[Node]:
        """The nodes that read a value, plus the node itself once for each graph output that it is."""
        users = [
            user for user in self._nodes if node.name in set(references([*user.args, *user.kwargs.values()]))
        ]
        return users + [node] * self.outputs.count(node.name)

    def has_one_user(self, node: Node) -> bool:
        """Whether exactly one node, or one output, uses the value."""
        return len(self.users(node)) == 1

    def add(self, before: Node, op: str, shape: Sequence[int], *args: Any, **kwargs: Any) -> Node:
        """Add a node of the same dtype before another one; tensor arguments are passed as nodes."""
        self._count += 1
        node = Node(
            f"folded{self._count}",
            f"aten.{op}",
            tuple(shape),
            before.dtype,
            args=tuple(_to_json(arg) for arg in args),
            kwargs={key: _to_json(value) for key, value in kwargs.items()},
        )
        self._nodes.insert(self._nodes.index(self._by_name[before.name]), node)
        self._by_name[node.name] = node
        return node

    def reduce(
        self, before: Node, kind: str, source: Node, dims: Sequence[int], keepdim: bool = False
    ) -> Node:
        """Add a sum or mean over dimensions; returns the source if `dims` is empty."""
        if not dims:
            return source
        shape = [1 if d in dims else size for d, size in enumerate(source.shape)]
        kept = shape if keepdim else [size for d, size in enumerate(source.shape) if d not in dims]
        op = {"sum": "sum.dim_IntList", "mean": "mean.dim"}[kind]
        return self.add(before, op, kept, source, sorted(dims), keepdim)

    def reshape(self, before: Node, source: Node, shape: Sequence[int]) -> Node:
        """The source with another shape."""
        if source.shape == tuple(shape):
            return source
        return self.add(before, "reshape.default", shape, source, list(shape))

    def replace(self, node: Node, new: Node) -> None:
        """Let all users of a node read another one, and drop nodes that are no longer used."""
        for position, user in enumerate(self._nodes):
            if node.name in set(references([*user.args, *user.kwargs.values()])):
                args = tuple(_renamed(arg, node.name, new.name) for arg in user.args)
                kwargs = {key: _renamed(value, node.name, new.name) for key, value in user.kwargs.items()}
                self._nodes[position] = self._by_name[user.name] = replace(user, args=args, kwargs=kwargs)
        self.outputs = [new.name if name == node.name else name for name in self.outputs]
        self._drop_unused()

    def is_independent_of_inputs(self, node: Node) -> bool:
        """Whether a value depends on parameters and constants only."""
        return all(self._by_name[name].op != "input" for name in self._ancestors(node))

    def _ancestors(self, node: Node) -> set[str]:
        pending, visited = [node.name], set[str]()
        while pending:
            name = pending.pop()
            if name not in visited:
                visited.add(name)
                current = self._by_name[name]
                pending += references([*current.args, *current.kwargs.values()])
        return visited

    def ancestors(self, node: Node) -> list[Node]:
        """All nodes that a value depends on, itself included."""
        return [self._by_name[name] for name in self._ancestors(node)]

    def _drop_unused(self) -> None:
        used, kept = set(self.outputs), []
        for node in reversed(self._nodes):
            if node.op in ("input", "parameter") or node.name in used:
                kept.append(node)
                used.update(references([*node.args, *node.kwargs.values()]))
        self._nodes = kept[::-1]
        self._by_name = {node.name: node for node in self._nodes}

    def graph(self) -> Graph:
        """The graph as it is now."""
        return Graph(tuple(self._nodes), tuple(self.outputs), self._single)


def operator_name(node: Node) -> str:
    """The operator without namespace and overload: `sum` for `aten.sum.dim_IntList`."""
    return node.op.split(".")[1] if "." in node.op else node.op


def references(arguments: Sequence[Any]) -> Iterator[str]:
    """The names of the values in arguments."""
    for argument in arguments:
        if isinstance(argument, dict) and "value" in argument:
            yield str(argument["value"])
        elif isinstance(argument, list):
            yield from references(argument)


def elements(node: Node) -> int:
    """The number of elements of a value."""
    return prod(node.shape)


def _to_json(argument: Any) -> Any:
    if isinstance(argument, Node):
        return {"value": argument.name}
    if isinstance(argument, (list, tuple)):
        return [_to_json(item) for item in argument]
    return argument


def _renamed(argument: Any, old: str, new: str) -> Any:
    if isinstance(argument, dict) and argument.get("value") == old:
        return {"value": new}
    if isinstance(argument, list):
        return [_renamed(item, old, new) for item in argument]
    return argument
