"""Reads a node as a reduction: its kind, dimensions and number of elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelpro.authors.playbook.algebra.graph_editor import GraphEditor, operator_name
from kernelpro.records import Node

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
