"""Constraints between tunables: Python expressions, computed by walking their syntax tree; nothing is ever executed.

Allowed are numbers, strings and booleans, names of tunables, + - * / // %, comparisons, and / or / not, min and max.
Arithmetic takes numbers alone, so that no expression can ask for more memory than its own length warrants.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from kernelpro.records import BadInput

Value = int | float | str | bool

_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}
_MOST_CHARACTERS = 500
"""A longer expression may be nested more deeply than it can be walked."""
_MEANS = "a constraint is made of tunables, literals, + - * / // %, comparisons, and, or, not, min and max"


def literal(node: ast.expr) -> Value | None:
    """The value of a literal, negative numbers included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = literal(node.operand)
        return -inner if isinstance(inner, (int, float)) and not isinstance(inner, bool) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool)):
        return node.value
    return None


class Constraint:
    """One `# tune-if:` line. Raises BadInput, with the line, for one that is not made of what is allowed."""

    def __init__(self, text: str, line: int):
        self.text, self.line = text, line
        if len(text) > _MOST_CHARACTERS:
            raise BadInput(
                f"line {line}: a constraint of more than {_MOST_CHARACTERS} characters; split it into several"
            )
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._bad("cannot be read") from None
        self._names: set[str] = set()
        self._inspect(self._tree)

    def __repr__(self) -> str:
        return f"Constraint({self.text!r})"

    def require_names(self, known: set[str]) -> None:
        """Every name must be a tunable's."""
        if unknown := sorted(self._names - known):
            raise self._bad(f"names {', '.join(unknown)}, which is no tunable here")

    def check(self, default: Mapping[str, Value]) -> None:
        """The default point must satisfy it, and be something it can be computed for."""
        try:
            holds = _compute(self._tree, default)
        except (TypeError, ArithmeticError) as error:
            raise self._bad(f"cannot be computed for the constants as they stand ({error})") from None
        if not holds:
            raise self._bad("does not hold for the constants as they stand")

    def holds(self, point: Mapping[str, Value]) -> bool:
        """Where it cannot be computed (a division by zero) it does not hold."""
        try:
            return bool(_compute(self._tree, point))
        except (TypeError, ArithmeticError):
            return False

    def _bad(self, what: str) -> BadInput:
        return BadInput(f"line {self.line}: the constraint `{self.text}` {what}")

    def _inspect(self, node: ast.expr) -> None:
        """Note the names; refuse what `_compute` does not know."""
        inner: list[ast.expr]
        match node:
            case ast.Name():
                self._names.add(node.id)
                inner = []
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                inner = [node.left, node.right]
            case ast.UnaryOp() if isinstance(node.op, (ast.Not, ast.USub, ast.UAdd)):
                inner = [node.operand]
            case ast.BoolOp():
                inner = node.values
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                inner = [node.left, *node.comparators]
            case ast.Call(func=ast.Name(id=name)) if (
                name in _CALLS and len(node.args) > 1 and not node.keywords
            ):
                inner = node.args
            case _ if literal(node) is not None:
                inner = []
            case _:
                raise self._bad(f"uses {ast.unparse(node)}; {_MEANS}")
        for one in inner:
            self._inspect(one)


def _compute(node: ast.expr, point: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return point[node.id]
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](
                _number(_compute(node.left, point)), _number(_compute(node.right, point))
            )
        case ast.UnaryOp(op=ast.Not()):
            return not _compute(node.operand, point)
        case ast.UnaryOp():
            value = _number(_compute(node.operand, point))
            return -value if isinstance(node.op, ast.USub) else value
        case ast.BoolOp():
            stops = isinstance(node.op, ast.Or)
            value = not stops
            for one in node.values:
                value = _compute(one, point)
                if bool(value) is stops:
                    break
            return value
        case ast.Compare():
            left = _compute(node.left, point)
            for op, term in zip(node.ops, node.comparators, strict=True):
                right = _compute(term, point)
                if not _COMPARISONS[type(op)](left, right):
                    return False
                left = right
            return True
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS[name](*(_compute(one, point) for one in node.args))
    raise AssertionError(f"{type(node).__name__} was let through")


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value
