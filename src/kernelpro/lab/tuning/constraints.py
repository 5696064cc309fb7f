"""Constraints between tunables: Python expressions that are evaluated by walking their syntax tree, not
executed.

They may contain numbers, strings, booleans, names of tunables, + - * / // %, comparisons, and / or / not, min
and max. Arithmetic accepts only numbers, so that a short expression (`"x" * 10**9`) cannot allocate much
memory."""

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
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}
_MAX_CHARACTERS = 500
"""A longer expression may be nested too deeply for the recursive evaluator."""
_GRAMMAR = "a constraint may use tunables, literals, + - * / // %, comparisons, and, or, not, min and max"


def literal_value(node: ast.expr) -> Value | None:
    """Return the value of a literal, negative numbers included; None for any other expression."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = literal_value(node.operand)
        return -inner if isinstance(inner, (int, float)) and not isinstance(inner, bool) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool)):
        return node.value
    return None


class Constraint:
    """One `# tune-if:` line. Raises BadInput with the line number if it contains anything else."""

    def __init__(self, text: str, line: int):
        self.text, self.line = text, line
        if len(text) > _MAX_CHARACTERS:
            raise BadInput(
                f"line {line}: the constraint has more than {_MAX_CHARACTERS} characters: split it"
            )
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._error("is not a valid Python expression") from None
        self._names: set[str] = set()
        self._validate(self._tree)

    def __repr__(self) -> str:
        return f"Constraint({self.text!r})"

    def require_names(self, tunables: set[str]) -> None:
        """Raise BadInput if the constraint uses names other than these tunables."""
        if unknown := sorted(self._names - tunables):
            raise self._error(f"uses {', '.join(unknown)}, which is not a tunable of this file")

    def require_default(self, default: Mapping[str, Value]) -> None:
        """Raise BadInput unless the default point satisfies the constraint."""
        try:
            holds = _evaluate(self._tree, default)
        except (TypeError, ArithmeticError) as error:
            raise self._error(f"cannot be evaluated for the default values ({error})") from None
        if not holds:
            raise self._error("does not hold for the default values")

    def holds(self, point: Mapping[str, Value]) -> bool:
        """Whether a point satisfies the constraint; False if it cannot be evaluated (division by zero)."""
        try:
            return bool(_evaluate(self._tree, point))
        except (TypeError, ArithmeticError):
            return False

    def _error(self, problem: str) -> BadInput:
        return BadInput(f"line {self.line}: the constraint `{self.text}` {problem}")

    def _validate(self, node: ast.expr) -> None:
        """Collect the names; raise BadInput for syntax that `_evaluate` does not support."""
        children: list[ast.expr]
        match node:
            case ast.Name():
                self._names.add(node.id)
                children = []
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                children = [node.left, node.right]
            case ast.UnaryOp() if isinstance(node.op, (ast.Not, ast.USub, ast.UAdd)):
                children = [node.operand]
            case ast.BoolOp():
                children = node.values
            case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
                children = [node.left, *node.comparators]
            case ast.Call(func=ast.Name(id=name)) if (
                name in _FUNCTIONS and len(node.args) > 1 and not node.keywords
            ):
                children = node.args
            case _ if literal_value(node) is not None:
                children = []
            case _:
                raise self._error(f"uses {ast.unparse(node)}; {_GRAMMAR}")
        for child in children:
            self._validate(child)


def _evaluate(node: ast.expr, point: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return point[node.id]
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](
                _number(_evaluate(node.left, point)), _number(_evaluate(node.right, point))
            )
        case ast.UnaryOp(op=ast.Not()):
            return not _evaluate(node.operand, point)
        case ast.UnaryOp():
            value = _number(_evaluate(node.operand, point))
            return -value if isinstance(node.op, ast.USub) else value
        case ast.BoolOp():
            is_or = isinstance(node.op, ast.Or)
            value = not is_or
            for operand in node.values:
                value = _evaluate(operand, point)
                if bool(value) is is_or:
                    break
            return value
        case ast.Compare():
            left = _evaluate(node.left, point)
            for op, term in zip(node.ops, node.comparators, strict=True):
                right = _evaluate(term, point)
                if not _COMPARISONS[type(op)](left, right):
                    return False
                left = right
            return True
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_evaluate(argument, point) for argument in node.args))
    raise AssertionError(f"{type(node).__name__} passed validation but cannot be evaluated")


def _number(value: Any) -> int | float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value
