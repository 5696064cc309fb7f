"""Speed against energy as a picture: all candidates that were measured, and the front of those nobody beats in both. Plain SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from kernelpro.engine import objective
from kernelpro.records import Outcome, Point, Step

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 24, 44, 52
_INK, _FRONT, _REST, _GRID = "#24292f", "#1a7f37", "#8c959f", "#d8dee4"
_LINES = 5
_MOST_NAMES = 12
"""Points that are all named; of more, those on the front."""


def points(outcome: Outcome | None, steps: Iterable[Step]) -> tuple[Point, ...]:
    """Of a run: as it was told at its end; before that, from the verdicts that are there."""
    told = outcome.front if outcome else ()
    return told or objective.front({step.number: step.verdict for step in steps})


def svg(points: Sequence[Point], title: str) -> str:
    """A complete SVG document; at least one point. Energy is drawn as a share of the baseline's, with its interval."""
    left, right = _span([point.ms for point in points])
    low, high = _span([value for point in points for value in (point.energy.low, point.energy.high)])

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - left) / (right - left)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" fill="{_INK}">{escape(title)}</text>',
    ]
    digits = max(2, 1 - math.floor(math.log10((high - low) / _LINES)))
    for part in range(_LINES + 1):
        ms, energy = left + (right - left) * part / _LINES, low + (high - low) * part / _LINES
        parts.append(
            f'<line x1="{x(ms):.1f}" x2="{x(ms):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_GRID}"/>'
        )
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(energy):.1f}" y2="{y(energy):.1f}" stroke="{_GRID}"/>'
        )
        parts.append(_label(x(ms), _HEIGHT - _BOTTOM + 18, f"{ms:.4g}", "middle", _INK))
        parts.append(_label(_LEFT - 8, y(energy) + 4, f"{energy:.{digits}f}", "end", _INK))
    best = [point for point in points if point.best]
    corners = " ".join(f"{x(point.ms):.1f},{y(point.energy.value):.1f}" for point in best)
    parts.append(f'<polyline fill="none" stroke="{_FRONT}" stroke-width="2" points="{corners}"/>')
    for point in points:
        colour, across, up = (_FRONT if point.best else _REST), x(point.ms), y(point.energy.value)
        bar = f'y1="{y(point.energy.low):.1f}" y2="{y(point.energy.high):.1f}"'
        parts.append(f'<line x1="{across:.1f}" x2="{across:.1f}" {bar} stroke="{colour}"/>')
        parts.append(f'<circle cx="{across:.1f}" cy="{up:.1f}" r="5" fill="{colour}"/>')
        side, shift = ("end", -9) if across > _WIDTH * 0.8 else ("start", 9)
        if point.best or len(points) <= _MOST_NAMES:
            parts.append(_label(across + shift, up + 4, f"step {point.step}", side, colour))
    parts.append(_label((_LEFT + _WIDTH) / 2, _HEIGHT - 14, "milliseconds a call", "middle", _INK))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    text = escape(f"energy a call, of {points[0].against}'s")
    parts.append(
        f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle" fill="{_INK}">{text}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _span(values: list[float]) -> tuple[float, float]:
    """A little more than what the values fill."""
    least, most = min(values), max(values)
    room = 0.1 * (most - least) or 0.1 * most
    return least - room, most + room


def _label(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
