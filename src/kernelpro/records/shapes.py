"""The shapes of a task's inputs. A task has one shape, or several that occur with different frequency.

A KernelBench file lists several shapes as follows. Each gives values for parameters of `get_inputs`, or for
constants of the file that `get_inputs` reads:

    SHAPES = [{"batch": 8, "weight": 3}, {"batch": 64}]

On the command line: `--shape batch=8,weight=3 --shape batch=64`. A time for all shapes is the mean over the
shapes, weighted by how often each occurs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelpro.records.base import BadInput, Record
from kernelpro.records.interval import Interval

WEIGHT = "weight"
"""The key of a shape's weight; all other keys are constants."""


@dataclass(frozen=True)
class Shape(Record):
    """One set of inputs of a task."""

    weight: float = 1.0
    """How often the shape occurs, relative to the task's other shapes."""
    constants: dict[str, int | float | str | bool] = field(default_factory=dict)
    """KernelBench files: arguments of `get_inputs`, or constants of the file that `get_inputs` reads."""
    example: int = 0
    """Live objects: index of its example inputs in the task's payload."""


@dataclass(frozen=True)
class ShapeTimes(Record):
    """Times for one shape of a task."""

    shape: str
    """Sizes of the inputs, such as `64x1024`."""
    weight: float = 1.0
    """Share of all calls that have this shape, 0 to 1."""
    times: dict[str, Interval] = field(default_factory=dict)
    """Milliseconds per call of each baseline and, in a verdict, of `candidate`."""
    speedup: dict[str, Interval] = field(default_factory=dict)
    """In a verdict: the candidate's speed-up over each baseline."""
    floor_ms: float | None = None
    """Shortest time in ms that the task allows for this shape on this device."""


@dataclass(frozen=True)
class UnseenShape(Record):
    """The result of a call with a batch size that the task does not name. The verdict's status does not
    depend on it."""

    shape: str
    """Sizes of the inputs."""
    batch: int
    """First dimension of the inputs."""
    passed: bool
    """Whether the outputs were correct."""
    reason: str = ""
    """Why the call failed; empty if it passed."""


def make_shape(values: Mapping[str, Any], what: str) -> Shape:
    """A shape of a KernelBench file from a dictionary of constants and, optionally, its weight. Raises
    BadInput. `what` names the source in error messages."""
    constants = {name: value for name, value in values.items() if name != WEIGHT}
    weight = values.get(WEIGHT, 1.0)
    if not all(isinstance(name, str) and name.isidentifier() for name in constants):
        raise BadInput(f"{what}: names must be identifiers: {', '.join(map(repr, constants))}")
    if not all(isinstance(value, (bool, int, float, str)) for value in constants.values()):
        raise BadInput(f"{what}: values must be numbers, strings or booleans")
    return Shape(check_weight(weight, what), constants)


def check_weight(weight: Any, what: str) -> float:
    """The weight as a float. Raises BadInput unless it is a positive number."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise BadInput(f"{what}: weight {weight!r}: give a positive number")
    return float(weight)


def parse_shape(text: str) -> Shape:
    """Parse a shape of the command line, such as `batch=8,weight=3`. Raises BadInput."""
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
    """The shapes listed in a KernelBench file; if it lists none, one shape without constants. Raises
    BadInput."""
    if "SHAPES" not in source:
        return (Shape(),)
    try:
        parsed = ast.parse(source)
    except SyntaxError:  # reported when the task is loaded
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
    """Each shape's share of all calls; the shares add up to 1."""
    total = sum(shape.weight for shape in shapes)
    return [shape.weight / total for shape in shapes]


def mean_interval(intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    """The weighted mean of measured values; `weights` add up to 1. Its bounds are the weighted means of the
    bounds, as if all errors had the same sign."""

    def mean(values: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    value = mean([x.value for x in intervals])
    low, high = mean([x.low for x in intervals]), mean([x.high for x in intervals])
    return Interval(value, min(low, value), max(high, value))


def mean_times(shapes: Sequence[ShapeTimes]) -> dict[str, Interval]:
    """The mean time of a call over all shapes, by name, for every name that was timed on all shapes."""
    names = [name for name in shapes[0].times if all(name in shape.times for shape in shapes)]
    weights = [shape.weight for shape in shapes]
    return {name: mean_interval([shape.times[name] for shape in shapes], weights) for name in names}


def total_speedup(shapes: Sequence[ShapeTimes]) -> dict[str, Interval]:
    """The total speed-up over each baseline: its time for all calls divided by the candidate's.

    With the candidate's times t, its speed-ups s and the weights w, this is sum(w t s) / sum(w t): the mean
    of the speed-ups, weighted by the time that the candidate spends on each shape.
    """
    spent = [shape.weight * shape.times["candidate"].value for shape in shapes]
    weights = [time / sum(spent) for time in spent]
    names = [name for name in shapes[0].speedup if all(name in shape.speedup for shape in shapes)]
    return {name: mean_interval([shape.speedup[name] for shape in shapes], weights) for name in names}
