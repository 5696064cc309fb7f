"""The progress of a run as SVG: the time of each step, the best time so far, the baselines and the floor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelpro.report import svg
from kernelpro.report.schema import BaselineSummary, ProgressPoint
from kernelpro.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

_BEST, _PASSED, _FAILED, _LINE = "#0757ba", "#1a7f37", "#cf222e", "#6e7781"
_LABELS = 130
"""Width in pixels for the names of the baselines, at the right."""


def plot_svg(
    points: Sequence[ProgressPoint], baselines: Sequence[BaselineSummary], floor_ms: float | None, title: str
) -> str:
    """The chart as an SVG document."""
    lines = [(row.label, row.comparable_ms) for row in baselines]
    lines += [("floor", floor_ms)] if floor_ms else []
    times = [point.ms for point in points if point.ms] + [ms for _, ms in lines]
    low, high = min(times, default=1.0) / 1.25, max(times, default=1.0) * 1.6
    last = max(2, *(point.step for point in points))
    right = WIDTH - RIGHT - _LABELS

    def x(step: float) -> float:
        return LEFT + (right - LEFT) * (step - 1) / (last - 1)

    def y(ms: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * math.log(high / ms) / math.log(high / low)

    parts = [
        svg.grid_y(y(value), f"{value:g}").replace(f'x2="{WIDTH - RIGHT:.1f}"', f'x2="{right:.1f}"')
        for value in _ticks(low, high)
    ]
    parts += [svg.label(x(step), HEIGHT - BOTTOM + 18, str(step), "middle") for step in _steps(last)]
    shown: list[float] = []
    for name, ms in sorted(lines, key=lambda line: -line[1]):
        parts.append(svg.line(LEFT, y(ms), right, y(ms), _LINE, 'stroke-dasharray="5 4"'))
        place = max(y(ms) + 4, shown[-1] + 14) if shown else y(ms) + 4
        shown.append(place)
        parts.append(svg.label(right + 8, place, name, "start", _LINE))
    best = [(point.step, point.best_ms) for point in points if point.best_ms]
    corners: list[tuple[float, float]] = []
    for (step, ms), before in zip(best, [None, *best], strict=False):
        if before:
            corners.append((x(step), y(before[1])))
        corners.append((x(step), y(ms)))
    if best:
        parts.append(svg.polyline([*corners, (x(last), y(best[-1][1]))], _BEST, 2.5))
    for point in points:
        if point.ms:
            parts.append(svg.circle(x(point.step), y(point.ms), 3.2, f'fill="{_PASSED}" stroke="white"'))
        else:
            style = f'fill="none" stroke="{_FAILED}"'
            parts.append(svg.circle(x(point.step), TOP + 6, 2.6, style))
    return svg.document(title, "step", "ms per call (log scale)", parts)


def _ticks(low: float, high: float) -> list[float]:
    """Tick values: 1, 2 and 5 in each decade of the range; of a large range, only powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) <= 9 else [tick for tick in inside if f"{tick:e}".startswith("1.0")]


def _steps(last: int) -> list[int]:
    """Step numbers on the axis: 1 and at most ten round numbers."""
    stride = next(s * 10**k for k in range(7) for s in (1, 2, 5) if last / (s * 10**k) <= 10)
    return [1, *range(stride if stride > 1 else 2, last + 1, stride)]
