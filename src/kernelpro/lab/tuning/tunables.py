"""Tunables: module-level constants whose other values are worth trying, declared in comments.

    BLOCK = 128  # tune: 64, 128, 256, 512
    STAGES = tl.constexpr(3)  # tune: 2, 3, 4
    # tune-if: BLOCK * STAGES <= 1024

The file stays an ordinary Python file that runs at its default point, the values as written. A value is an int, a
float, a string or a boolean, alone or as the only argument of a call to `constexpr`, and is among the values to try.
Constraints are computed by constraints.py's small evaluator; those that do not hold rule a point out.
"""

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

Point = Mapping[str, Value]
"""A value for each tunable."""

_COMMENT = re.compile(r"#\s*(tune|tune-if)\s*:(.*)", re.DOTALL)


@dataclass(frozen=True)
class Declared:
    """What a source declares. Numbers stand in ascending order, whatever order they were written in."""

    values: dict[str, tuple[Value, ...]]
    default: dict[str, Value]
    constraints: tuple[Constraint, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    @property
    def size(self) -> int:
        """Points of the grid, those that the constraints rule out included."""
        return math.prod(len(values) for values in self.values.values())

    def allows(self, point: Point) -> bool:
        return all(constraint.holds(point) for constraint in self.constraints)

    def points(self) -> Iterator[dict[str, Value]]:
        """All points that satisfy the constraints, the last tunable changing fastest."""
        for chosen in itertools.product(*self.values.values()):
            point = dict(zip(self.values, chosen, strict=True))
            if self.allows(point):
                yield point

    def sample(self, rng: random.Random) -> dict[str, Value]:
        """Any point, allowed or not."""
        return {name: rng.choice(values) for name, values in self.values.items()}

    def steps(self, point: Point, name: str) -> list[Value]:
        """Values one step from the point's: the next lower and the next higher; of strings, which have no order, any other."""
        values, here = self.values[name], point[name]
        if isinstance(here, str):
            return [value for value in values if value != here]
        at = values.index(here)
        return [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]

    def neighbours(self, point: Point, tunables: int = 1) -> Iterator[dict[str, Value]]:
        """Allowed points one step away in each of so many tunables."""
        for names in itertools.combinations(self.values, tunables):
            for chosen in itertools.product(*(self.steps(point, name) for name in names)):
                near = dict(point) | dict(zip(names, chosen, strict=True))
                if self.allows(near):
                    yield near

    def distance(self, a: Point, b: Point) -> int:
        """Steps between two points."""
        total = 0
        for name, values in self.values.items():
            if isinstance(a[name], str):
                total += a[name] != b[name]
            else:
                total += abs(values.index(a[name]) - values.index(b[name]))
        return total


@dataclass(frozen=True)
class _Span:
    """A stretch of one source, in characters from its beginning."""

    start: int
    end: int


@dataclass(frozen=True)
class _Slot:
    """Where one tunable stands in the source."""

    name: str
    value: _Span
    comment: _Span
    texts: dict[Value, str]
    """Each value as its author wrote it."""
    default: Value


@dataclass(frozen=True)
class _Reading:
    slots: tuple[_Slot, ...]
    conditions: tuple[tuple[_Span, Constraint], ...]


def parse(source: str) -> Declared:
    """What `source` declares; nothing is an answer too. Raises BadInput, with the line, for a declaration that cannot be used."""
    reading = _read(source)
    values = {slot.name: _ordered(tuple(slot.texts)) for slot in reading.slots}
    default = {slot.name: slot.default for slot in reading.slots}
    for _, constraint in reading.conditions:
        constraint.check(default)
    return Declared(values, default, tuple(constraint for _, constraint in reading.conditions))


def with_point(source: str, point: Point) -> str:
    """The source with those constants replaced and nothing else touched; tunables that `point` leaves out keep their value."""
    return _replaced(source, _settings(_read(source), point))


def frozen(source: str, point: Point) -> str:
    """The source at `point` with plain constants: nothing is declared any more, comments note what was searched."""
    reading = _read(source)
    edits = _settings(reading, point)
    for slot in reading.slots:
        edits[slot.comment] = f"# tuned over {', '.join(slot.texts.values())}"
    for span, constraint in reading.conditions:
        edits[span] = f"# tuned where {constraint.text}"
    return _replaced(source, edits)


def _settings(reading: _Reading, point: Point) -> dict[_Span, str]:
    slots = {slot.name: slot for slot in reading.slots}
    edits = {}
    for name, value in point.items():
        if name not in slots:
            raise BadInput(f"{name} is not declared as a tunable")
        if value not in slots[name].texts:
            raise BadInput(f"{value!r} is not among the declared values of {name}")
        if value != slots[name].default:
            edits[slots[name].value] = slots[name].texts[value]
    return edits


def _replaced(source: str, edits: Mapping[_Span, str]) -> str:
    for span in sorted(edits, key=lambda span: span.start, reverse=True):
        source = source[: span.start] + edits[span] + source[span.end :]
    return source


def _ordered(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return values if any(isinstance(value, str) for value in values) else tuple(sorted(values))


# --- reading ---------------------------------------------------------------------------------------------


def _read(source: str) -> _Reading:
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source, newline="").readline))
    except SyntaxError as error:
        raise BadInput(f"line {error.lineno}: syntax error: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise BadInput(f"not Python source: {error}") from None
    places = _Places(source)
    slots: list[_Slot] = []
    conditions: list[tuple[_Span, Constraint]] = []
    for token in tokens:
        if token.type != tokenize.COMMENT or not (found := _COMMENT.match(token.string)):
            continue
        line = token.start[0]
        start = places.of_characters(line, token.start[1])
        span = _Span(start, start + len(token.string))
        if found[1] == "tune-if":
            conditions.append((span, Constraint(found[2].strip(), line)))
        else:
            slots.append(_slot(tree, places, line, span, found[2].strip()))
    for name in [slot.name for slot in slots]:
        _require_constant(tree, name)
    for _, constraint in conditions:
        constraint.require_names({slot.name for slot in slots})
    return _Reading(tuple(slots), tuple(conditions))


class _Places:
    """Positions in a source: the tokenizer counts characters in a line, the parser bytes of UTF-8."""

    def __init__(self, source: str):
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)
        self._starts = [0, *itertools.accumulate(map(len, self._lines))]

    def of_characters(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.expr) -> _Span:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return _Span(
            self._of_bytes(node.lineno, node.col_offset), self._of_bytes(node.end_lineno, node.end_col_offset)
        )

    def _of_bytes(self, line: int, column: int) -> int:
        return self.of_characters(line, len(self._lines[line - 1].encode()[:column].decode()))


def _slot(tree: ast.Module, places: _Places, line: int, comment: _Span, text: str) -> _Slot:
    assigned = [s for s in tree.body if s.end_lineno == line]
    target, node = _assignment(assigned[0]) if len(assigned) == 1 else (None, None)
    value = constraints.literal(node) if node else None
    if target is None or node is None or value is None:
        raise BadInput(
            f"line {line}: `# tune:` belongs behind one module-level constant, as in `BLOCK = 128  # tune: 64, 128`"
        )
    texts = _values(target, line, text)
    kinds = {_kind(one) for one in (*texts, value)}
    if len(kinds) > 1:
        raise BadInput(
            f"line {line}: the values of {target} are of different kinds: {' and '.join(sorted(kinds))}"
        )
    if value not in texts:
        raise BadInput(f"line {line}: {target} is {value!r}, which is not among its values to try: {text}")
    return _Slot(target, places.span(node), comment, texts, value)


def _assignment(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Name and literal of `NAME = literal`, `NAME: type = literal` or `NAME = constexpr(literal)`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None, None
    value = statement.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        value = value.args[0] if called == "constexpr" else None
    return (target.id, value) if isinstance(target, ast.Name) else (None, None)


def _values(name: str, line: int, text: str) -> dict[Value, str]:
    inner = f"[{text}\n]"  # so that a further comment behind the values does no harm
    try:
        listed = ast.parse(inner, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        listed = None
    if not isinstance(listed, ast.List):
        raise BadInput(f"line {line}: the values of {name} cannot be read: {text}")
    if not listed.elts:
        raise BadInput(f"line {line}: {name} has no values to try")
    texts: dict[Value, str] = {}
    for node in listed.elts:
        value, written = constraints.literal(node), ast.get_source_segment(inner, node) or ""
        if value is None:
            raise BadInput(f"line {line}: {written} is not an int, float, string or boolean")
        if value in texts:
            raise BadInput(f"line {line}: {name} lists {written} twice")
        texts[value] = written
    return texts


def _kind(value: Value) -> str:
    return {bool: "boolean", str: "string"}.get(type(value), "number")


def _require_constant(tree: ast.Module, name: str) -> None:
    """A tunable is assigned once; functions and classes have names of their own unless they say `global`."""
    found: list[int] = []
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            found.append(node.lineno)
        waiting.extend(ast.iter_child_nodes(node))
    if len(found) > 1:
        raise BadInput(
            f"line {max(found)}: {name} is a tunable, but assigned again here (first in line {min(found)})"
        )
