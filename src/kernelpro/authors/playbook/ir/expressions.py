"""Expressions: what is computed for one element, as a tree that shares its equal parts, in no language's syntax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kernelpro.authors.playbook.ir.indices import IndexExpr, IndirectIndex, LoopVar, Quotient, Remainder

LEAVES = ("const", "load", "index", "row", "total", "product")
"""const: data is a number.  load: (tensor's name, Index).  index: the value of an Index, int64.  row: a Reduce's name.
total: a Total's name.  product: (a Product's name, Index of the column)."""
UNARY = (
    *("neg", "abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos"),
    *("floor", "ceil", "round", "trunc", "not", "cast"),
)
"""`cast` converts to its own dtype; `not` is logical; `round` goes to even."""
BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "pow",
    "fmod",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "and",
    "or",
)
"""Comparisons and logic have dtype bool; `div` of floating types only."""
OTHER = ("select", "scan")
"""select: condition, then, else.  scan: data is (kind, Var): the sum, product, maximum or minimum of its argument
from the beginning of that loop to the turn it is in."""
FLOATING = ("float64", "float32", "float16", "bfloat16")


def itemsize(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}.get(
        dtype, 4
    )


class Expr:
    """One node; equal nodes of one builder are the same object."""

    __slots__ = ("args", "data", "dtype", "number", "op", "variables")

    def __init__(self, op: str, args: tuple[Expr, ...], dtype: str, data: Any, number: int):
        self.op, self.args, self.dtype, self.data, self.number = op, args, dtype, data, number
        found = frozenset[LoopVar]().union(*(arg.variables for arg in args))
        for part in data if isinstance(data, tuple) else (data,):
            if isinstance(part, IndexExpr):
                found |= part.variables
            elif isinstance(part, LoopVar):
                found |= {part}
        self.variables: frozenset[LoopVar] = found
        """Loops whose turn changes it."""

    def __repr__(self) -> str:
        return f"%{self.number}"

    def walk(self) -> Iterator[Expr]:
        """Every node once, arguments before what uses them; numbers inside indices included."""
        done: set[int] = set()
        waiting: list[tuple[Expr, bool]] = [(self, False)]
        while waiting:
            node, ready = waiting.pop()
            if node.number in done:
                continue
            if ready:
                done.add(node.number)
                yield node
                continue
            waiting.append((node, True))
            waiting += [(arg, False) for arg in (*node.args, *indirect_operands(node))]


def indirect_operands(node: Expr) -> list[Expr]:
    """Integer expressions that a node's index depends on."""
    index = node.data[1] if node.op in ("load", "product") else node.data if node.op == "index" else None
    return [] if index is None else list(_indirect_values(index))


def _indirect_values(index: IndexExpr) -> Iterator[Expr]:
    for atom, _ in index.terms:
        if isinstance(atom, IndirectIndex):
            yield atom.value
        elif isinstance(atom, Quotient | Remainder):
            yield from _indirect_values(atom.dividend)


class ExprBuilder:
    """Where expressions are made; it folds constants and what changes nothing."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Expr] = {}

    def make(self, op: str, *args: Expr, dtype: str = "", data: Any = None) -> Expr:
        dtype = dtype or args[-1].dtype
        folded = self._fold(op, args, dtype)
        if folded is not None:
            return folded
        key = (
            op,
            tuple(arg.number for arg in args),
            dtype,
            type(data),
            repr(data) if isinstance(data, float) else data,
        )
        if key not in self._nodes:
            self._nodes[key] = Expr(op, args, dtype, data, len(self._nodes))
        return self._nodes[key]

    def const(self, value: Any, dtype: str) -> Expr:
        value = float(value) if dtype in FLOATING else bool(value) if dtype == "bool" else int(value)
        return self.make("const", dtype=dtype, data=value)

    def cast(self, value: Expr, dtype: str) -> Expr:
        if value.dtype == dtype:
            return value
        if value.op == "const" and not (isinstance(value.data, float) and not math.isfinite(value.data)):
            return self.const(value.data, dtype)
        return self.make("cast", value, dtype=dtype)

    def _fold(self, op: str, args: tuple[Expr, ...], dtype: str) -> Expr | None:
        if op not in ("add", "sub", "mul", "div", "select"):
            return None
        if op == "select":
            return self._fold_select(*args)
        left, right = args
        if left.op == right.op == "const" and not (op == "div" and not right.data):
            a, b = left.data, right.data
            return self.const({"add": a + b, "sub": a - b, "mul": a * b}[op] if op != "div" else a / b, dtype)
        if right.op == "const" and right.data == {"add": 0, "sub": 0, "mul": 1, "div": 1}[op]:
            return left
        if left.op == "const" and left.data == {"add": 0, "mul": 1}.get(op):
            return right
        return None

    def _fold_select(self, condition: Expr, yes: Expr, no: Expr) -> Expr | None:
        if condition.op == "const":
            return yes if condition.data else no
        if yes.op == no.op == "const" and yes.dtype == "bool" and yes.data != no.data:
            return condition if yes.data else self.make("not", condition)
        return None

    def substitute(self, root: Expr, new: Mapping[LoopVar, IndexExpr]) -> Expr:
        """The same expression with other indices for loop variables."""
        made: dict[int, Expr] = {}

        def inner(value: Expr) -> Expr:
            return made[value.number]

        for node in root.walk():
            if not node.variables & new.keys():
                made[node.number] = node
                continue
            data = node.data
            if node.op in ("load", "product"):
                data = (data[0], data[1].substitute(new, inner))
            elif node.op == "index":
                data = data.substitute(new, inner)
            elif node.op == "scan":
                data = (data[0], _single_variable(new[data[1]]) if data[1] in new else data[1])
            made[node.number] = self.make(
                node.op, *(inner(a) for a in node.args), dtype=node.dtype, data=data
            )
        return made[root.number]


def _single_variable(index: IndexExpr) -> LoopVar:
    ((var, factor),) = index.terms
    assert isinstance(var, LoopVar) and factor == 1 and not index.constant, "a scan runs along one whole loop"
    return var
