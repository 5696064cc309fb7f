"""Comparable times: one time scale for all candidates of a run, even if the machine changes its speed.

Clocks drift, laptops throttle, and a run may continue on another machine. Milliseconds of two judgements are
therefore not comparable. Their speed-ups over a baseline are: the judge alternates calls of the candidate and
of the baseline. The comparable time of a candidate is

    time of the baseline when the task was prepared / speed-up over that baseline

1. Of the baselines in the verdict, the one that was fastest at the preparation is used.
2. With several shapes, the comparable time is the weighted mean of this quotient over the shapes.
3. A verdict that shares no baseline with the preparation keeps its measured time. A candidate that did not
   pass has no time.

Everything that ranks or compares steps uses comparable times: the tree, the objective, the finalists, gains
over a parent, the charts. Displays of a single step show its measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelpro.records.interval import Interval
from kernelpro.records.judging import Verdict
from kernelpro.records.running import Step
from kernelpro.records.shapes import ShapeTimes
from kernelpro.records.study import TaskFacts


@dataclass(frozen=True)
class ComparableTimes:
    """Converts measured times to comparable times. Holds the times of the baselines when the task was
    prepared; without any, a measured time is its own comparable time."""

    baselines: Mapping[str, float] = field(default_factory=dict)
    """Time of a call in ms, by baseline; for several shapes, the weighted mean."""
    shapes: tuple[ShapeTimes, ...] = ()
    """The baselines' times for each shape of the task."""

    @classmethod
    def of(cls, facts: TaskFacts | None) -> ComparableTimes:
        """The converter for a task; without baselines as long as the task has not been measured."""
        return cls(facts.baselines, facts.shapes) if facts else cls()

    def ms(self, step: Step | None) -> float | None:
        """The comparable time of a step; None if it did not pass."""
        time = self.interval(step.verdict if step else None)
        return time.value if time else None

    def gain(self, step: Step, parent: Step | None) -> float | None:
        """Speed-up of a step over its parent; None if one of them did not pass."""
        before, after = self.ms(parent), self.ms(step)
        return before / after if before and after else None

    def interval(self, verdict: Verdict | None) -> Interval | None:
        """The comparable time of a verdict with its interval; None if the candidate did not pass."""
        if verdict is None or not verdict.times:
            return None

        def bound(read: Callable[[Interval], float], invert: Callable[[Interval], float]) -> float:
            by_shape = [_values(shape.speedup, invert) for shape in verdict.shapes]
            return self.value(read(verdict.times["candidate"]), _values(verdict.speedup, invert), by_shape)

        value = bound(_value, _value)
        return Interval(value, min(value, bound(_low, _high)), max(value, bound(_high, _low)))

    def value(
        self,
        measured_ms: float,
        speedup: Mapping[str, float],
        by_shape: Sequence[Mapping[str, float]] = (),
    ) -> float:
        """The comparable time of a candidate from its measured time and its speed-ups by baseline, in total
        and for each shape."""
        shared = [name for name, ratio in speedup.items() if ratio and name in self.baselines]
        if not shared:
            return measured_ms
        name = min(shared, key=lambda name: self.baselines[name])
        if len(by_shape) > 1 and len(by_shape) == len(self.shapes):
            pairs = list(zip(self.shapes, by_shape, strict=True))
            if all(name in shape.times and ratios.get(name) for shape, ratios in pairs):
                return sum(shape.weight * shape.times[name].value / ratios[name] for shape, ratios in pairs)
        return self.baselines[name] / speedup[name]

    def of_shape(self, verdict: Verdict, number: int) -> float:
        """The comparable time for the shape with this number."""
        shape = verdict.shapes[number]
        times = self.shapes[number].times if len(self.shapes) == len(verdict.shapes) else {}
        alone = ComparableTimes({name: time.value for name, time in times.items()})
        return alone.value(shape.times["candidate"].value, _values(shape.speedup, _value))


def _values(ratios: Mapping[str, Interval], read: Callable[[Interval], float]) -> dict[str, float]:
    return {name: read(ratio) for name, ratio in ratios.items()}


def _value(interval: Interval) -> float:
    return interval.value


def _low(interval: Interval) -> float:
    return interval.low


def _high(interval: Interval) -> float:
    return interval.high
