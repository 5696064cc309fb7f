"""Tunables: module-level constants with alternative values, which the source declares in comments.

    BLOCK = 128  # tune: 64, 128, 256, 512
    STAGES = tl.constexpr(3)  # tune: 2, 3, 4
    # tune-if: BLOCK * STAGES <= 1024

The file remains an ordinary Python file that runs at its default point, the values as written. A value is an
int, a float, a string or a boolean, alone or as the only argument of a call to `constexpr`. The default must
be among the listed values. A point is allowed if all constraints hold (constraints.py evaluates them)."""

from __future__ import annotations

import ast
import io
import itertools
import math
import random
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelpro.lab.tuning import constraints
from kernelpro.lab.tuning.constraints import Constraint, Value
from kernelpro.records import BadInput

TunableValues = dict[str, Value]
"""One value for each tunable, by name."""

_COMMENT = re.compile(r"#\s*(tune|tune-if)\s*:(.*)", re.DOTALL)


@dataclass(frozen=True)
class SearchSpace:
    """The grid of points that a source declares. Numeric values are sorted in ascending order."""

    values: dict[str, tuple[Value, ...]]
    default: TunableValues
    constraints: tuple[Constraint, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tunables, in the order of the source."""
        return tuple(self.values)

    @property
    def size(self) -> int:
        """Number of points of the grid, including those that the constraints exclude."""
        return math.prod(len(values) for values in self.values.values())

    def allows(self, point: TunableValues) -> bool:
        """Whether a point satisfies all constraints."""
        return all(constraint.holds(point) for constraint in self.constraints)

    def points(self) -> Iterator[TunableValues]:
        """Yield all points that satisfy the constraints; the last tunable changes fastest."""
        for chosen in itertools.product(*self.values.values()):
            point = dict(zip(self.values, chosen, strict=True))
            if self.allows(point):
                yield point

    def sample(self, rng: random.Random) -> TunableValues:
        """Return a random point of the grid; the constraints may exclude it."""
        return {name: rng.choice(values) for name, values in self.values.items()}

    def adjacent_values(self, point: TunableValues, name: str) -> list[Value]:
        """Return the next lower and the next higher value, or all other values if they are strings."""
        values, current = self.values[name], point[name]
        if isinstance(current, str):
            return [value for value in values if value != current]
        index = values.index(current)
        return [values[i] for i in (index - 1, index + 1) if 0 <= i < len(values)]

    def neighbours(self, point: TunableValues, tunables: int = 1) -> Iterator[TunableValues]:
        """Yield the allowed points that differ by one step in exactly `tunables` tunables."""
        for names in itertools.combinations(self.values, tunables):
            for chosen in itertools.product(*(self.adjacent_values(point, name) for name in names)):
                neighbour = dict(point) | dict(zip(names, chosen, strict=True))
                if self.allows(neighbour):
                    yield neighbour

    def distance(self, a: TunableValues, b: TunableValues) -> int:
        """Return the number of steps between two points."""
        total = 0
        for name, values in self.values.items():
            if isinstance(a[name], str):
                total += a[name] != b[name]
            else:
                total += abs(values.index(a[name]) - values.index(b[name]))
        return total


@dataclass(frozen=True)
class _Span:
    """A range of a source, in characters from its beginning."""

    start: int
    end: int


@dataclass(frozen=True)
class _Tunable:
    """One tunable and where the source declares it."""

    name: str
    value_span: _Span
    comment_span: _Span
    texts: dict[Value, str]
    """The source text of each value."""
    default: Value


@dataclass(frozen=True)
class _Declarations:
    tunables: tuple[_Tunable, ...]
    constraints: tuple[tuple[_Span, Constraint], ...]


def parse(source: str) -> SearchSpace:
    """Return the search space that `source` declares, which may be empty.

    Raises BadInput with the line number for an invalid declaration.
    """
    declarations = _parse_declarations(source)
    values = {tunable.name: _sort_numbers(tuple(tunable.texts)) for tunable in declarations.tunables}
    default = {tunable.name: tunable.default for tunable in declarations.tunables}
    for _, constraint in declarations.constraints:
        constraint.require_default(default)
    return SearchSpace(values, default, tuple(constraint for _, constraint in declarations.constraints))


def apply_point(source: str, point: TunableValues) -> str:
    """Return the source with the constants of `point` replaced; other tunables keep their value."""
    return _apply_edits(source, _value_edits(_parse_declarations(source), point))


def freeze(source: str, point: TunableValues) -> str:
    """Return the source at `point` without declarations; comments note which values were searched."""
    declarations = _parse_declarations(source)
    edits = _value_edits(declarations, point)
    for tunable in declarations.tunables:
        edits[tunable.comment_span] = f"# tuned over {', '.join(tunable.texts.values())}"
    for span, constraint in declarations.constraints:
        edits[span] = f"# tuned where {constraint.text}"
    return _apply_edits(source, edits)


def _value_edits(declarations: _Declarations, point: TunableValues) -> dict[_Span, str]:
    tunables = {tunable.name: tunable for tunable in declarations.tunables}
    edits = {}
    for name, value in point.items():
        if name not in tunables:
            raise BadInput(f"{name} is not declared as a tunable")
        if value not in tunables[name].texts:
            raise BadInput(f"{value!r} is not among the declared values of {name}")
        if value != tunables[name].default:
            edits[tunables[name].value_span] = tunables[name].texts[value]
    return edits


def _apply_edits(source: str, edits: Mapping[_Span, str]) -> str:
    for span in sorted(edits, key=lambda span: span.start, reverse=True):
        source = source[: span.start] + edits[span] + source[span.end :]
    return source


def _sort_numbers(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return values if any(isinstance(value, str) for value in values) else tuple(sorted(values))


# --- parsing ---------------------------------------------------------------------------------------------


def _parse_declarations(source: str) -> _Declarations:
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source, newline="").readline))
    except SyntaxError as error:
        raise BadInput(f"line {error.lineno}: syntax error: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise BadInput(f"not Python source: {error}") from None
    offsets = _SourceOffsets(source)
    tunables: list[_Tunable] = []
    conditions: list[tuple[_Span, Constraint]] = []
    for token in tokens:
        if token.type != tokenize.COMMENT or not (match := _COMMENT.match(token.string)):
            continue
        line = token.start[0]
        start = offsets.offset(line, token.start[1])
        span = _Span(start, start + len(token.string))
        if match[1] == "tune-if":
            conditions.append((span, Constraint(match[2].strip(), line)))
        else:
            tunables.append(_parse_tunable(tree, offsets, line, span, match[2].strip()))
    for name in [tunable.name for tunable in tunables]:
        _require_constant(tree, name)
    for _, constraint in conditions:
        constraint.require_names({tunable.name for tunable in tunables})
    return _Declarations(tuple(tunables), tuple(conditions))


class _SourceOffsets:
    """Character offsets in a source. The tokenizer's columns count characters, the parser's UTF-8 bytes."""

    def __init__(self, source: str):
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a tokenizer position."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr) -> _Span:
        """Return the range of a node of the syntax tree."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._byte_offset(node.lineno, node.col_offset)
        return _Span(start, self._byte_offset(node.end_lineno, node.end_col_offset))

    def _byte_offset(self, line: int, column: int) -> int:
        return self.offset(line, len(self._lines[line - 1].encode()[:column].decode()))


def _parse_tunable(
    tree: ast.Module, offsets: _SourceOffsets, line: int, comment_span: _Span, text: str
) -> _Tunable:
    statements = [s for s in tree.body if s.end_lineno == line]
    target, node = _assignment(statements[0]) if len(statements) == 1 else (None, None)
    value = constraints.literal_value(node) if node else None
    if target is None or node is None or value is None:
        raise BadInput(
            f"line {line}: `# tune:` must follow one module-level constant,"
            " as in `BLOCK = 128  # tune: 64, 128`"
        )
    texts = _parse_values(target, line, text)
    kinds = {_kind(candidate_value) for candidate_value in (*texts, value)}
    if len(kinds) > 1:
        raise BadInput(f"line {line}: the values of {target} mix types: {' and '.join(sorted(kinds))}")
    if value not in texts:
        raise BadInput(f"line {line}: {target} is {value!r}, which is not among its listed values: {text}")
    return _Tunable(target, offsets.span(node), comment_span, texts, value)


def _assignment(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Return the name and the literal of `NAME = literal`, `NAME: type = literal` or
    `NAME = constexpr(literal)`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None, None
    value = statement.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        function = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        value = value.args[0] if function == "constexpr" else None
    return (target.id, value) if isinstance(target, ast.Name) else (None, None)


def _parse_values(name: str, line: int, text: str) -> dict[Value, str]:
    list_source = f"[{text}\n]"  # the newline ends a comment that follows the values
    try:
        parsed_list = ast.parse(list_source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed_list = None
    if not isinstance(parsed_list, ast.List):
        raise BadInput(f"line {line}: the values of {name} are not a list of literals: {text}")
    if not parsed_list.elts:
        raise BadInput(f"line {line}: {name} lists no values")
    texts: dict[Value, str] = {}
    for node in parsed_list.elts:
        value, value_text = constraints.literal_value(node), ast.get_source_segment(list_source, node) or ""
        if value is None:
            raise BadInput(f"line {line}: {value_text} is not an int, float, string or boolean")
        if value in texts:
            raise BadInput(f"line {line}: {name} lists {value_text} twice")
        texts[value] = value_text
    return texts


def _kind(value: Value) -> str:
    return {bool: "boolean", str: "string"}.get(type(value), "number")


def _require_constant(tree: ast.Module, name: str) -> None:
    """Raise BadInput if a tunable is assigned twice at module level."""
    assigned_lines: list[int] = []
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            assigned_lines.append(node.lineno)
        pending.extend(ast.iter_child_nodes(node))
    if len(assigned_lines) > 1:
        raise BadInput(
            f"line {max(assigned_lines)}: the tunable {name} is assigned again"
            f" (first in line {min(assigned_lines)}): assign it once"
        )
