"""The shapes of a task's inputs: a task has one, or several that occur with different frequency.

A KernelBench file names several in a list, each with values for parameters of `get_inputs` or for constants
of the file that it reads:

    SHAPES = [{"batch": 8, "weight": 3}, {"batch": 64}]

The command line names them as `--shape batch=8,weight=3 --shape batch=64`. Times over all shapes are means,
weighted by how often each occurs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelpro.records.base import BadInput, Record
from kernelpro.records.interval import Interval

WEIGHT = "weight"
"""The key of the weight, beside constants."""


@dataclass(frozen=True)
class Shape(Record):
    """One set of inputs of a task."""

    weight: float = 1.0
    """How often it occurs, relative to the task's other shapes."""
    constants: dict[str, int | float | str | bool] = field(default_factory=dict)
    """KernelBench files: arguments of `get_inputs`, or constants of the file that it reads."""
    example: int = 0
    """Live objects: the number of its example inputs in the payload."""


@dataclass(frozen=True)
class ShapeTimes(Record):
    """What was measured for one shape of a task."""

    shape: str
    """The sizes of its inputs, such as `64x1024`."""
    weight: float = 1.0
    """How often it occurs, as a share of all calls."""
    times: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds per call, of each baseline and, in a verdict, of `candidate`."""
    speedup: dict[str, Interval] = field(default_factory=dict)
    """In a verdict: over each baseline."""
    floor_ms: float | None = None


@dataclass(frozen=True)
class UnseenShape(Record):
    """A call with a batch size that the task does not name. Information: the status does not depend on it."""

    shape: str
    batch: int
    """The first dimension of its inputs."""
    passed: bool
    reason: str = ""
    """Why it failed."""


def make_shape(values: Mapping[str, Any], what: str) -> Shape:
    """A shape of a KernelBench file from its constants and, optionally, its weight. Raises BadInput."""
    constants = {name: value for name, value in values.items() if name != WEIGHT}
    weight = values.get(WEIGHT, 1.0)
    if not all(isinstance(name, str) and name.isidentifier() for name in constants):
        raise BadInput(f"{what}: names must be identifiers: {', '.join(map(repr, constants))}")
    if not all(isinstance(value, (bool, int, float, str)) for value in constants.values()):
        raise BadInput(f"{what}: values must be numbers, strings or booleans")
    return Shape(check_weight(weight, what), constants)


def check_weight(weight: Any, what: str) -> float:
    """A weight as a number. Raises BadInput unless it is positive."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise BadInput(f"{what}: weight {weight!r}: give a positive number")
    return float(weight)


def parse_shape(text: str) -> Shape:
    """A shape of the command line: `batch=8,weight=3`. Raises BadInput."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise BadInput(f"--shape {text}: write NAME=VALUE,..., such as batch=8,weight=3")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[name] = value
    return make_shape(values, f"--shape {text}")


def shapes_in_source(source: str, task: str) -> tuple[Shape, ...]:
    """The shapes that a KernelBench file names; one without constants if it names none. Raises BadInput."""
    if "SHAPES" not in source:
        return (Shape(),)
    try:
        parsed = ast.parse(source)
    except SyntaxError:  # reported where the task is loaded
        return (Shape(),)
    for node in (node for node in parsed.body if isinstance(node, ast.Assign)):
        if any(isinstance(target, ast.Name) and target.id == "SHAPES" for target in node.targets):
            return _literal_shapes(node, task)
    return (Shape(),)


def _literal_shapes(node: ast.Assign, task: str) -> tuple[Shape, ...]:
    what = f"task {task}: SHAPES in line {node.lineno}"
    try:
        values = ast.literal_eval(node.value)
    except ValueError:
        values = None
    if not (isinstance(values, (list, tuple)) and values and all(isinstance(v, dict) for v in values)):
        raise BadInput(f'{what} must be a list of dicts of literals, such as [{{"batch": 8, "weight": 3}}]')
    return tuple(make_shape(value, what) for value in values)


def shares(shapes: Sequence[Shape]) -> list[float]:
    """How often each shape occurs, as a share of all calls."""
    total = sum(shape.weight for shape in shapes)
    return [shape.weight / total for shape in shapes]


def mean_interval(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """The weighted mean of measured values; `weights` add up to 1. Its bounds are the means of theirs, as if
    all erred in the same direction."""

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    value = mean([x.value for x in intervals])
    low, high = mean([x.low for x in intervals]), mean([x.high for x in intervals])
    return Interval(value, min(low, value), max(high, value))


def mean_times(shapes: Sequence[ShapeTimes]) -> dict[str, Interval]:
    """The mean time of a call over all shapes, by name: of what was timed on every shape."""
    names = [name for name in shapes[0].times if all(name in shape.times for shape in shapes)]
    weights = [shape.weight for shape in shapes]
    return {name: mean_interval([shape.times[name] for shape in shapes], weights) for name in names}


def total_speedup(shapes: Sequence[ShapeTimes]) -> dict[str, Interval]:
    """The speed-up over each baseline in total: time of all calls by time of all calls.

    With t the candidate's times, s its speed-ups and w the weights, it is sum(w t s) / sum(w t): the mean of
    the speed-ups, weighted by the time that the candidate spends on each shape.
    """
    spent = [shape.weight * shape.times["candidate"].value for shape in shapes]
    weights = [time / sum(spent) for time in spent]
    names = [name for name in shapes[0].speedup if all(name in shape.speedup for shape in shapes)]
    return {name: mean_interval([shape.speedup[name] for shape in shapes], weights) for name in names}
