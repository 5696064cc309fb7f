"""Speed against energy as SVG: all measured candidates, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kernelpro.engine import objective
from kernelpro.records import ComparableTimes, Outcome, Point, Step
from kernelpro.report import svg
from kernelpro.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

_FRONT, _OTHER = "#1a7f37", "#8c959f"
_GRID_LINES = 5
_MAX_LABELS = 12
"""With more points than this, only those on the front get a label."""


def points(outcome: Outcome | None, steps: Iterable[Step], times: ComparableTimes) -> tuple[Point, ...]:
    """The points of a run: those of its outcome or, without an outcome, from the verdicts so far."""
    stored = outcome.front if outcome else ()
    return stored or objective.front(times, {step.number: step.verdict for step in steps})


def plot_svg(points: Sequence[Point], title: str) -> str:
    """The chart of one or more points as an SVG document. Energies are relative to the baseline's, with their
    intervals."""
    left, right = _span([point.ms for point in points])
    low, high = _span([value for point in points for value in (point.energy.low, point.energy.high)])

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / (right - left)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = []
    digits = max(2, 1 - math.floor(math.log10((high - low) / _GRID_LINES)))
    for part in range(_GRID_LINES + 1):
        ms, energy = left + (right - left) * part / _GRID_LINES, low + (high - low) * part / _GRID_LINES
        parts += [svg.grid_x(x(ms), f"{ms:.4g}"), svg.grid_y(y(energy), f"{energy:.{digits}f}")]
    front = [(x(point.ms), y(point.energy.value)) for point in points if point.best]
    parts.append(svg.polyline(front, _FRONT, 2))
    for point in points:
        color, px, py = (_FRONT if point.best else _OTHER), x(point.ms), y(point.energy.value)
        parts.append(svg.line(px, y(point.energy.low), px, y(point.energy.high), color))
        parts.append(svg.circle(px, py, 5, f'fill="{color}"'))
        anchor, shift = ("end", -9) if px > WIDTH * 0.8 else ("start", 9)
        if point.best or len(points) <= _MAX_LABELS:
            parts.append(svg.label(px + shift, py + 4, f"step {point.step}", anchor, color))
    energy_title = f"energy per call, relative to {points[0].baseline}"
    return svg.document(title, "milliseconds per call", energy_title, parts)


def _span(values: list[float]) -> tuple[float, float]:
    """The range of the values, widened by a margin."""
    least, most = min(values), max(values)
    margin = 0.1 * (most - least) or 0.1 * most
    return least - margin, most + margin
