"""Whether a task with several shapes gets one kernel for all of them, or one for each.

Every candidate is right for all shapes, but not the fastest for all. One kernel is simpler, and the drop-in
module checks fewer guards. So shapes get kernels of their own only if one for all takes more than 5 % longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kernelpro.records import Step, Verdict
from kernelpro.records.shapes import mean_times, total_speedup

MAX_EXTRA_TIME = 0.05
"""What one kernel for all shapes may cost, as a share of the time of all calls."""


def specialists(steps: Iterable[Step]) -> list[Step]:
    """The fastest step for each shape; none for a task with one shape."""
    judged = [step for step in steps if step.verdict and len(step.verdict.shapes) > 1]
    if not judged:
        return []
    fastest = [min(judged, key=lambda step: _times(step.verdict)[number]) for number in _numbers(judged[0])]
    return list({step.number: step for step in fastest}.values())


def _numbers(step: Step) -> range:
    assert step.verdict
    return range(len(step.verdict.shapes))


def _times(verdict: Verdict | None) -> list[float]:
    return [shape.times["candidate"].value for shape in verdict.shapes] if verdict else []


def choose_by_shape(passed: Mapping[int, Verdict], best: int) -> tuple[tuple[int, ...], Verdict]:
    """The step for each shape and the verdict on all of them together; `best` and its own verdict, without
    steps, where it is the winner for all shapes."""
    verdict = passed[best]
    if len(verdict.shapes) < 2:
        return (), verdict
    steps = tuple(
        min(passed, key=lambda step: _times(passed[step])[number]) for number in range(len(verdict.shapes))
    )
    shapes = tuple(passed[step].shapes[number] for number, step in enumerate(steps))
    times = mean_times(shapes)
    if verdict.times["candidate"].value <= (1 + MAX_EXTRA_TIME) * times["candidate"].value:
        return (), verdict
    speedup = total_speedup(shapes)
    gain = verdict.times["candidate"].value / times["candidate"].value
    named = ", ".join(f"step {step} for {s.shape}" for step, s in zip(steps, shapes, strict=True))
    reason = f"correct; one kernel for each shape ({named}), {gain:.2f}x faster than step {best} for all"
    return steps, replace(verdict, reason=reason, times=times, speedup=speedup, shapes=shapes)
