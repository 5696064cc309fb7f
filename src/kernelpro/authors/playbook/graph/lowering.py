"""Lowering of the operator graph: each ATen operator becomes a lazy value (values.py)."""

from __future__ import annotations

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.graph import elementwise, matmul_and_conv, reductions, shapes
from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall, Result
from kernelpro.authors.playbook.graph.values import InputValue, Value
from kernelpro.records import Graph

HANDLERS: dict[str, Handler] = {
    **elementwise.HANDLERS,
    **shapes.HANDLERS,
    **reductions.HANDLERS,
    **matmul_and_conv.HANDLERS,
}
_MOST_OPERATORS = 400
"""Longer chains are nested more deeply than they can be walked."""
_TYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "uint8", "int8")


def lower(graph: Graph) -> dict[str, Result]:
    """Every value of the graph by its name."""
    if len(graph.nodes) > _MOST_OPERATORS:
        raise NoProposal(f"{len(graph.nodes)} operators are more than the playbook reads ({_MOST_OPERATORS})")
    values: dict[str, Result] = {}
    for node in graph.nodes:
        if node.dtype not in (*_TYPES, "tuple"):
            raise NoProposal(f"{node.name} is of {node.dtype}, for which the playbook has no kernels")
        if node.op in ("input", "parameter"):
            values[node.name] = InputValue(node.name, node.shape, node.dtype)
            continue
        name = node.op if node.op == "getitem" else node.op.split(".")[1]
        if name not in HANDLERS:
            raise NoProposal(f"{node.op} is outside the playbook's families")
        made = HANDLERS[name](OperatorCall(node, values))
        if isinstance(made, Value) and tuple(made.shape) != tuple(node.shape):
            raise NoProposal(
                f"{node.op} gives shape {list(node.shape)}, which the playbook reads as {list(made.shape)}"
            )
        values[node.name] = made
    return values
