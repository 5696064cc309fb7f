"""Expressions as text. What languages share is here; a writer adds its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kernelpro.authors.playbook.ir.expressions import Expr, indirect_operands
from kernelpro.authors.playbook.ir.indices import IndexExpr, IndirectIndex, LoopVar, Quotient

Names = dict[Expr, str]
"""What has a name already."""


class Printer(ABC):
    """Prints expressions; values that are used more than once are given names."""

    @abstractmethod
    def constant(self, value: float | int | bool, dtype: str) -> str: ...

    @abstractmethod
    def load(self, tensor: str, index: str, dtype: str) -> str: ...

    @abstractmethod
    def operator(self, op: str, args: list[str], node: Expr) -> str:
        """Everything in UNARY, BINARY and `select`; arguments come ready to stand anywhere."""

    @abstractmethod
    def declare(self, name: str, dtype: str, text: str) -> str:
        """A line that gives a value its name."""

    @abstractmethod
    def reference(self, node: Expr, names: Names) -> str:
        """row, total and product, where the writer has not named them; scans it always names."""

    def variable(self, var: LoopVar) -> str:
        return var.name

    def index(self, index: IndexExpr, names: Names | None = None) -> str:
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

    def divide(self, text: str, by: int, quotient: bool) -> str:
        return f"(({text}) {'/' if quotient else '%'} {by})"

    def text(self, node: Expr, names: Names) -> str:
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
        self, roots: Iterable[Expr], names: Names, wanted: Callable[[Expr], bool] = lambda node: True
    ) -> list[str]:
        """Lines that name what the roots need more than once, and the roots themselves; `names` grows by them.

        Nodes for which `wanted` is false are named by somebody else, or printed where they are used.
        """
        roots = list(roots)
        order = _order(roots, names)
        uses = Counter(arg for node in order for arg in (*node.args, *indirect_operands(node)))
        lines = []
        for node in order:
            if node.op == "const" or node in names or not wanted(node):
                continue
            if node in roots or uses[node] > 1 or self.must_be_named(node):
                text = self.text(node, names)
                names[node] = f"v{node.number}"
                lines.append(self.declare(names[node], node.dtype, text))
        return lines

    def must_be_named(self, node: Expr) -> bool:
        return False


def _order(roots: Iterable[Expr], names: Mapping[Expr, str]) -> list[Expr]:
    """All nodes under the roots, arguments first, down to what has a name."""
    made: dict[Expr, None] = {}
    waiting = [(root, False) for root in reversed(list(roots))]
    while waiting:
        node, ready = waiting.pop()
        if node in made:
            continue
        if ready or node in names:
            made[node] = None
            continue
        waiting.append((node, True))
        waiting += [(arg, False) for arg in (*node.args, *indirect_operands(node))]
    return list(made)
