"""Reads a node as a reduction or a pooling: its kind, dimensions and number of elements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, operator_name
from kernelpro.records import Node

_POOLING = re.compile(r"(adaptive_)?(avg|max)_pool([123])d")
_GLOBAL_POOLS = {f"adaptive_avg_pool{d}d": d for d in (1, 2, 3)}


@dataclass(frozen=True)
class ReductionCall:
    """A reduction of one tensor over dimensions."""

    kind: str
    """ATen's name: sum, mean, amax, logsumexp, ..."""
    source: Node
    dims: tuple[int, ...]
    keepdim: bool

    @property
    def count(self) -> int:
        """The number of elements that each result combines."""
        return prod(self.source.shape[d] for d in self.dims)


def read_reduction(editor: GraphEditor, node: Node) -> ReductionCall | None:
    """A node as a reduction; None if it is another operator. Pooling to one element is a mean."""
    name, source = operator_name(node), editor.operand(node, 0)
    if source is None or node.dtype != source.dtype:
        return None
    rank = len(source.shape)
    if name in _GLOBAL_POOLS and prod(node.shape[-_GLOBAL_POOLS[name] :]) == 1:
        return ReductionCall("mean", source, tuple(range(rank - _GLOBAL_POOLS[name], rank)), True)
    if name not in ("sum", "mean", "amax", "amin", "logsumexp"):
        return None
    dims, keepdim = editor.argument(node, 1, "dim"), bool(editor.argument(node, 2, "keepdim", False))
    if node.op.endswith(".default") and name in ("sum", "mean"):
        dims, keepdim = None, False
    dims = [dims] if isinstance(dims, int) else dims
    normalized = tuple(sorted(d % rank for d in dims)) if dims else tuple(range(rank))
    return ReductionCall(name, source, normalized, keepdim)


@dataclass(frozen=True)
class Pooling:
    """A pooling without padding, whose windows lie inside of its source."""

    kind: str
    """avg or max."""
    source: Node
    kernel: list[int]
    stride: list[int]


def read_pooling(editor: GraphEditor, node: Node) -> Pooling | None:
    """A node as a pooling; None if it is another operator, or pads, dilates or rounds up."""
    match, source = _POOLING.fullmatch(operator_name(node)), editor.operand(node, 0)
    if match is None or source is None or node.kwargs:
        return None
    kind, rank = match[2], int(match[3])
    if len(source.shape) != 2 + rank:
        return None
    if match[1]:
        sizes = list(zip(source.shape[2:], node.shape[2:], strict=True))
        kernel = [size // results for size, results in sizes]
        if kind == "max" or any(size % results for size, results in sizes):
            return None
        return Pooling(kind, source, kernel, kernel)
    kernel = per_dim(editor.argument(node, 1), rank, 1)
    stride = per_dim(editor.argument(node, 2), rank, 0)
    rounds_up = editor.argument(node, 4 if kind == "avg" else 5, default=False)
    if any(per_dim(editor.argument(node, 3), rank, 0)) or rounds_up:
        return None
    if kind == "avg" and editor.argument(node, 6) is not None:  # another divisor
        return None
    if kind == "max" and set(per_dim(editor.argument(node, 4), rank, 1)) != {1}:
        return None
    return Pooling(kind, source, kernel, stride if any(stride) else kernel)


def per_dim(argument: object, rank: int, default: int) -> list[int]:
    """A number for each dimension, from an argument that has one or several or is missing."""
    if argument is None or argument == []:
        return [default] * rank
    numbers = [argument] if isinstance(argument, int) else list(argument)  # type: ignore[call-overload]
    return numbers * rank if len(numbers) == 1 else numbers
