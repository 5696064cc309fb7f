"""Expressions: what a kernel computes for one element, as a DAG that is independent of the language.

Operations by number of arguments (Expr.args); the value of Expr.data is in parentheses:

    0   const (a number), load ((tensor name, IndexExpr)), index (an IndexExpr; the node is its int64 value),
        row (the name of a ReduceStep), total (the name of a Total),
        product ((the name of a MatrixProduct, the IndexExpr of the column))
    1   neg abs exp expm1 log log1p sqrt rsqrt tanh erf sin cos floor ceil round trunc not cast
        `cast` converts to the node's dtype, `not` is logical, `round` rounds half to even
    1   exp2 exp_below_0 gelu log1p_exp mish: only the C++ backend introduces these (cpp/composites.py)
    1   scan ((kind, LoopVar)): the sum, product, maximum or minimum of all iterations up to this one
    2   add sub mul div max min pow fmod lt le gt ge eq ne and or
        comparisons and logic have dtype bool; `div` takes floating types only
    3   select: condition, value if true, value if false
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kernelpro.authors.playbook.ir.indices import IndexExpr, IndirectIndex, LoopVar, Quotient, Remainder

LEAVES = ("const", "load", "index", "row", "total", "product")
"""Operations without arguments."""
FLOATING = ("float64", "float32", "float16", "bfloat16")


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    sizes = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
    return sizes.get(dtype, 4)


class Expr:
    """One node of the DAG. An ExprBuilder returns the same object for equal nodes (hash consing)."""

    __slots__ = ("args", "data", "dtype", "number", "op", "variables")

    def __init__(self, op: str, args: tuple[Expr, ...], dtype: str, data: Any, number: int):
        self.op, self.args, self.dtype, self.data, self.number = op, args, dtype, data, number
        variables = frozenset[LoopVar]().union(*(arg.variables for arg in args))
        for part in data if isinstance(data, tuple) else (data,):
            if isinstance(part, IndexExpr):
                variables |= part.variables
            elif isinstance(part, LoopVar):
                variables |= {part}
        self.variables: frozenset[LoopVar] = variables
        """The loops that its value depends on."""

    def __repr__(self) -> str:
        return f"%{self.number}"

    @property
    def index(self) -> IndexExpr | None:
        """The index of a load, a product (its column) or an `index` node; None for other nodes."""
        index = self.data[1] if self.op in ("load", "product") else self.data
        return index if isinstance(index, IndexExpr) else None

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The arguments, and the expressions inside the node's index (indirect indices)."""
        index = self.index
        return self.args if index is None else (*self.args, *_indirect_values(index))

    def walk(self) -> Iterator[Expr]:
        """This node and all nodes below it, each once, operands first."""
        done: set[int] = set()
        stack: list[tuple[Expr, bool]] = [(self, False)]
        while stack:
            node, operands_done = stack.pop()
            if node.number in done:
                continue
            if operands_done:
                done.add(node.number)
                yield node
                continue
            stack.append((node, True))
            stack += [(operand, False) for operand in node.operands]


def _indirect_values(index: IndexExpr) -> Iterator[Expr]:
    for atom, _ in index.terms:
        if isinstance(atom, IndirectIndex):
            yield atom.value
        elif isinstance(atom, Quotient | Remainder):
            yield from _indirect_values(atom.dividend)


def nodes_of(roots: Iterable[Expr], *ops: str) -> set[Expr]:
    """The nodes below the roots that have one of these operations; without operations, all nodes."""
    return {node for root in roots for node in root.walk() if not ops or node.op in ops}


class ExprBuilder:
    """Creates expressions. Shares equal nodes, folds constants and drops operations without effect."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Expr] = {}

    def make(self, op: str, *args: Expr, dtype: str = "", data: Any = None) -> Expr:
        """The node of an operation; `dtype` defaults to that of the last argument."""
        dtype = dtype or args[-1].dtype
        folded = self._fold(op, args, dtype)
        if folded is not None:
            return folded
        # repr tells 0.0 from -0.0, and type tells 1 from True
        value = repr(data) if isinstance(data, float) else data
        key = (op, tuple(arg.number for arg in args), dtype, type(data), value)
        if key not in self._nodes:
            self._nodes[key] = Expr(op, args, dtype, data, len(self._nodes))
        return self._nodes[key]

    def const(self, value: Any, dtype: str) -> Expr:
        """A constant, converted to `dtype`."""
        value = float(value) if dtype in FLOATING else bool(value) if dtype == "bool" else int(value)
        return self.make("const", dtype=dtype, data=value)

    def cast(self, value: Expr, dtype: str) -> Expr:
        """The value converted to `dtype`."""
        if value.dtype == dtype:
            return value
        if value.op == "const" and not (isinstance(value.data, float) and not math.isfinite(value.data)):
            return self.const(value.data, dtype)
        return self.make("cast", value, dtype=dtype)

    def _fold(self, op: str, args: tuple[Expr, ...], dtype: str) -> Expr | None:
        if op == "select":
            return self._fold_select(*args)
        if op not in ("add", "sub", "mul", "div"):
            return None
        left, right = args
        if left.op == right.op == "const" and not (op == "div" and not right.data):
            a, b = left.data, right.data
            return self.const({"add": a + b, "sub": a - b, "mul": a * b}[op] if op != "div" else a / b, dtype)
        if right.op == "const" and right.data == {"add": 0, "sub": 0, "mul": 1, "div": 1}[op]:
            return left
        if left.op == "const" and left.data == {"add": 0, "mul": 1}.get(op):
            return right
        return None

    def _fold_select(self, condition: Expr, if_true: Expr, if_false: Expr) -> Expr | None:
        if condition.op == "const":
            return if_true if condition.data else if_false
        if if_true.op == if_false.op == "const" and if_true.dtype == "bool" and if_true.data != if_false.data:
            return condition if if_true.data else self.make("not", condition)
        return None

    def substitute(self, root: Expr, replacements: Mapping[LoopVar, IndexExpr]) -> Expr:
        """The expression with loop variables replaced."""
        memo: dict[Expr, Expr] = {}
        for node in root.walk():
            varies = node.variables & replacements.keys()
            memo[node] = self._rebuild(node, memo, replacements) if varies else node
        return memo[root]

    def rewrite(self, root: Expr, replace: Callable[[Expr], Expr], memo: dict[Expr, Expr]) -> Expr:
        """The expression rebuilt in this builder, operands first, with `replace` applied to each node.

        `memo` maps nodes to their results and is extended, so that several roots share their nodes.
        """
        for node in root.walk():
            if node not in memo:
                memo[node] = replace(self._rebuild(node, memo, {}))
        return memo[root]

    def _rebuild(
        self, node: Expr, memo: Mapping[Expr, Expr], replacements: Mapping[LoopVar, IndexExpr]
    ) -> Expr:
        data = node.data
        if node.op in ("load", "product"):
            data = (data[0], data[1].substitute(replacements, memo.__getitem__))
        elif node.op == "index":
            data = data.substitute(replacements, memo.__getitem__)
        elif node.op == "scan" and data[1] in replacements:
            data = (data[0], _single_variable(replacements[data[1]]))
        return self.make(node.op, *(memo[arg] for arg in node.args), dtype=node.dtype, data=data)


def _single_variable(index: IndexExpr) -> LoopVar:
    ((var, factor),) = index.terms
    assert isinstance(var, LoopVar) and factor == 1 and not index.constant, "a scan covers one whole loop"
    return var


def softplus_argument(node: Expr) -> Expr | None:
    """The x in max(x, 0) + log1p(exp(-|x|)); None if the node has another form."""
    if node.op != "add" or node.args[0].op != "max" or node.args[1].op != "log1p":
        return None
    x, zero = node.args[0].args
    exponential = node.args[1].args[0]
    if not is_number(zero, 0.0) or exponential.op != "exp" or exponential.args[0].op != "neg":
        return None
    absolute = exponential.args[0].args[0]
    return x if absolute.op == "abs" and absolute.args[0] is x else None


def is_number(node: Expr, value: float) -> bool:
    """Whether it is this constant, up to rounding."""
    return node.op == "const" and math.isclose(node.data, value, rel_tol=1e-6)
