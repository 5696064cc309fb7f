"""Decides whether a task with several shapes gets one kernel for all shapes, or one for each.

Every candidate is correct for all shapes, but another one may be the fastest for each shape. One kernel is
simpler, and the drop-in module checks fewer guards. So each shape gets its own kernel only if one kernel for
all shapes takes more than 5 % longer (comparable times).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kernelpro.records import ComparableTimes, Interval, ShapeTimes, Step, Verdict
from kernelpro.records.shapes import mean_times, total_speedup

MAX_EXTRA_TIME = 0.05
"""How much longer one kernel for all shapes may take, as a share of the time of all calls."""


def specialists(times: ComparableTimes, steps: Iterable[Step]) -> list[Step]:
    """The fastest step for each shape, without repetitions; none for a task with one shape."""
    judged = [step for step in steps if step.verdict and len(step.verdict.shapes) > 1]
    if not judged:
        return []
    verdicts = {step.number: step.verdict for step in judged if step.verdict}
    by_number = {step.number: step for step in judged}
    return [by_number[number] for number in dict.fromkeys(_fastest_by_shape(times, verdicts))]


def _fastest_by_shape(times: ComparableTimes, verdicts: Mapping[int, Verdict]) -> tuple[int, ...]:
    """The fastest step for each shape."""
    shapes = range(len(next(iter(verdicts.values())).shapes))
    return tuple(min(verdicts, key=lambda step: times.of_shape(verdicts[step], number)) for number in shapes)


def choose_by_shape(
    times: ComparableTimes, passed: Mapping[int, Verdict], best: int
) -> tuple[tuple[int, ...], Verdict]:
    """The step for each shape, and the verdict on all these kernels together. If `best` wins for all shapes:
    no steps, and its own verdict."""
    verdict = passed[best]
    if len(verdict.shapes) < 2:
        return (), verdict
    steps = _fastest_by_shape(times, passed)
    shapes = tuple(passed[step].shapes[number] for number, step in enumerate(steps))
    one_for_all = [times.of_shape(verdict, number) for number in range(len(steps))]
    one_each = [times.of_shape(passed[step], number) for number, step in enumerate(steps)]
    gain = _mean(one_for_all, shapes) / _mean(one_each, shapes)
    if gain <= 1 + MAX_EXTRA_TIME:
        return (), verdict
    speedup = total_speedup([_timed(shape, ms) for shape, ms in zip(shapes, one_each, strict=True)])
    named = ", ".join(f"step {step} for {s.shape}" for step, s in zip(steps, shapes, strict=True))
    reason = f"correct; one kernel for each shape ({named}), {gain:.2f}x faster than step {best} for all"
    return steps, replace(verdict, reason=reason, times=mean_times(shapes), speedup=speedup, shapes=shapes)


def _mean(values: Iterable[float], shapes: Iterable[ShapeTimes]) -> float:
    return sum(shape.weight * value for value, shape in zip(values, shapes, strict=True))


def _timed(shape: ShapeTimes, ms: float) -> ShapeTimes:
    """The shape with this time of the candidate."""
    return replace(shape, times=shape.times | {"candidate": Interval(ms, ms, ms)})
