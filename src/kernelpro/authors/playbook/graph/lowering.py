"""Lowering of the operator graph: each ATen operator becomes a lazy value (values.py)."""

from __future__ import annotations

from collections.abc import Iterator

from kernelpro.authors.author import NoProposal
from kernelpro.authors.playbook.graph import elementwise, library, matmul_and_conv, reductions, shapes
from kernelpro.authors.playbook.graph.operator_call import Handler, OperatorCall, Result
from kernelpro.authors.playbook.graph.values import Concat, InputValue, Materialized, Value, View
from kernelpro.records import Graph

HANDLERS: dict[str, Handler] = {
    **elementwise.HANDLERS,
    **shapes.HANDLERS,
    **reductions.HANDLERS,
    **matmul_and_conv.HANDLERS,
}
"""By the operator's ATen name, without namespace and overload."""
_MAX_OPERATORS = 400
"""The expressions of longer chains would exceed Python's recursion limit."""
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "uint8", "int8")


def lower(
    graph: Graph, form: library.LibraryForm = "own", stored: frozenset[str] = frozenset()
) -> dict[str, Result]:
    """The value of every node, by name.

    `form` says which operators torch computes. Results of the operators in `stored` are written to memory
    before they are read. Raises NoProposal, with the operator's name, for an unsupported operator.
    """
    operators = sum(node.op not in ("input", "parameter") for node in graph.nodes)
    if operators > _MAX_OPERATORS:
        raise NoProposal(f"the playbook supports up to {_MAX_OPERATORS} operators; the task has {operators}")
    values: dict[str, Result] = {}
    for node in graph.nodes:
        if node.dtype not in (*_DTYPES, "tuple"):
            raise NoProposal(f"the playbook does not support the type {node.dtype} (of {node.name})")
        if node.op in ("input", "parameter"):
            values[node.name] = InputValue(node.name, node.shape, node.dtype)
            continue
        call = OperatorCall(node, values)
        from_library = library.call_library(call, form) if form != "own" else None
        if from_library is None and call.name not in HANDLERS:
            raise NoProposal(f"the playbook does not support the operator {node.op}")
        result = from_library or HANDLERS[call.name](call)
        if isinstance(result, Value) and result.shape != tuple(node.shape):
            computed, actual = list(result.shape), list(node.shape)
            raise NoProposal(f"the playbook computes shape {computed} for {node.op}, which returns {actual}")
        for concat in _concatenations(result):
            concat.node = node.name
        values[node.name] = (
            Materialized(result) if node.name in stored and isinstance(result, Value) else result
        )
    return values


def _concatenations(result: Result) -> Iterator[Concat]:
    """The concatenations in an operator's result that have no node yet. Padding makes several nested ones."""
    pending = [result] if isinstance(result, Value) else []
    while pending:
        value = pending.pop()
        if isinstance(value, Concat) and not value.node:
            yield value
        if isinstance(value, (View, Concat)) and not (isinstance(value, Concat) and value.node):
            pending += value.sources
