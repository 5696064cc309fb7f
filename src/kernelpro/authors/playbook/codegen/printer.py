"""Prints expressions as source text. Each backend subclasses `Printer` with its language's syntax."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kernelpro.authors.playbook.ir.expressions import Expr
from kernelpro.authors.playbook.ir.indices import IndexExpr, IndirectIndex, LoopVar, Quotient

Names = dict[Expr, str]
"""The variables that hold values already computed."""


class Printer(ABC):
    """Prints expressions. Values that are used more than once are assigned to variables."""

    @abstractmethod
    def constant(self, value: float | int | bool, dtype: str) -> str:
        """A literal."""

    @abstractmethod
    def load(self, tensor: str, index: str, dtype: str) -> str:
        """An element of a tensor, converted to the type of arithmetic."""

    @abstractmethod
    def operator(self, op: str, args: list[str], node: Expr) -> str:
        """An operation with arguments; the arguments need no further parentheses."""

    @abstractmethod
    def declare(self, name: str, dtype: str, text: str) -> str:
        """A statement that assigns a value to a new variable."""

    @abstractmethod
    def reference(self, node: Expr, names: Names) -> str:
        """A row, total or product that is not in `names`. Scans always are."""

    def variable(self, var: LoopVar) -> str:
        """A loop variable."""
        return var.name

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
        """An index expression."""
        names = names or {}
        parts = []
        for atom, factor in index.terms:
            if isinstance(atom, LoopVar):
                text = self.variable(atom)
            elif isinstance(atom, IndirectIndex):
                text = self.text(atom.value, names)
            else:
                text = self.divide(self.index(atom.dividend, names), atom.divisor, isinstance(atom, Quotient))
            parts.append(text if factor == 1 else f"{factor} * {text}")
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts).replace("+ -", "- ")

    def divide(self, text: str, divisor: int, quotient: bool) -> str:
        """The quotient or the remainder of a non-negative index."""
        return f"(({text}) {'/' if quotient else '%'} {divisor})"

    def text(self, node: Expr, names: Names) -> str:
        """An expression in terms of the variables in `names`."""
        if node in names:
            return names[node]
        if node.op == "const":
            return self.constant(node.data, node.dtype)
        if node.op == "load":
            return self.load(node.data[0], self.index(node.data[1], names), node.dtype)
        if node.op == "index":
            return f"({self.index(node.data, names)})"
        if node.op in ("row", "total", "product"):
            return self.reference(node, names)
        return self.operator(node.op, [self.text(arg, names) for arg in node.args], node)

    def statements(
        self, roots: Iterable[Expr], names: Names, nameable: Callable[[Expr], bool] = lambda node: True
    ) -> list[str]:
        """Statements that assign the roots, and subexpressions that are used more than once, to variables.

        The new variables are added to `names`. Nodes that are not `nameable` get no variable here: they are
        named elsewhere, or printed where they are used.
        """
        roots = list(roots)
        order = _operands_first(roots, names)
        uses = Counter(operand for node in order for operand in node.operands)
        lines = []
        for node in order:
            if node.op == "const" or node in names or not nameable(node):
                continue
            if node in roots or uses[node] > 1 or self.must_be_named(node):
                text = self.text(node, names)
                names[node] = f"v{node.number}"
                lines.append(self.declare(names[node], node.dtype, text))
        return lines

    def must_be_named(self, node: Expr) -> bool:
        """Whether a node needs a variable even if it is used only once."""
        return False


def _operands_first(roots: Iterable[Expr], names: Mapping[Expr, str]) -> list[Expr]:
    """The nodes below the roots, operands first. The operands of named nodes are left out."""
    order: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, operands_done = stack.pop()
        if node in order:
            continue
        if operands_done or node in names:
            order[node] = None
            continue
        stack.append((node, True))
        stack += [(operand, False) for operand in node.operands]
    return list(order)
