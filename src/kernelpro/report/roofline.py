"""The roofline as a picture: roofs, the task's intensity, the candidate's dot and how far it may rise. Plain SVG."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 24, 44, 52
_INK, _ROOF, _DOT, _GRID = "#24292f", "#0969da", "#cf222e", "#d8dee4"


def svg(position: dict[str, Any], title: str) -> str:
    """A complete SVG document."""
    bandwidth, roof = position["roof_bandwidth"], position["roof_flops"]
    intensity, rate, ridge = (
        max(position["intensity"], 1e-3),
        max(position["flops_per_second"], 1.0),
        position["ridge"],
    )
    left, right = _decade(min(intensity, ridge) / 8, down=True), _decade(max(intensity, ridge) * 8)
    low, high = _decade(min(rate, left * bandwidth * 4) / 2, down=True), _decade(roof * 1.5)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(value / left) / math.log(right / left)

    def y(value: float) -> float:
        return (
            _HEIGHT
            - _BOTTOM
            - (_HEIGHT - _TOP - _BOTTOM) * math.log(max(value, low) / low) / math.log(high / low)
        )

    attainable = min(roof, intensity * bandwidth)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" fill="{_INK}">{escape(title)}</text>',
    ]
    parts += [_vertical(x(v), _short(v)) for v in _decades(left, right)]
    parts += [_horizontal(y(v), f"{_short(v / 1e12)}") for v in _decades(low, high)]
    start = max(left, low / bandwidth)
    parts.append(
        f'<polyline fill="none" stroke="{_ROOF}" stroke-width="2.5" points="{x(start):.1f},{y(start * bandwidth):.1f} '
        f'{x(ridge):.1f},{y(roof):.1f} {x(right):.1f},{y(roof):.1f}"/>'
    )
    parts.append(_label(x(right) - 6, y(roof) - 8, f"{roof / 1e12:.3g} TFLOP/s", "end", _ROOF))
    middle = math.sqrt(start * ridge)
    parts.append(
        _label(x(middle) - 8, y(middle * bandwidth) - 8, f"{bandwidth / 1e12:.3g} TB/s", "end", _ROOF)
    )
    parts.append(
        f'<line x1="{x(intensity):.1f}" x2="{x(intensity):.1f}" y1="{y(rate):.1f}" y2="{y(attainable):.1f}" stroke="{_DOT}" '
        'stroke-dasharray="4 3"/>'
    )
    parts.append(
        f'<circle cx="{x(intensity):.1f}" cy="{y(attainable):.1f}" r="4" fill="white" stroke="{_ROOF}" stroke-width="2"/>'
    )
    parts.append(f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="6" fill="{_DOT}"/>')
    text = f"{position['time_ms']:.3f} ms, {position['of_floor']:.0%} of the floor"
    anchor, shift = ("end", -12) if x(intensity) > _WIDTH * 0.6 else ("start", 12)
    parts.append(_label(x(intensity) + shift, y(rate) + 4, text, anchor, _DOT))
    parts.append(
        _label((_LEFT + _WIDTH) / 2, _HEIGHT - 14, "operations per byte that must move", "middle", _INK)
    )
    middle_y = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(18 {middle_y:.0f}) rotate(-90)" text-anchor="middle" fill="{_INK}">TFLOP/s</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _decade(value: float, down: bool = False) -> float:
    return float(10.0 ** (math.floor if down else math.ceil)(math.log10(value)))


def _decades(low: float, high: float) -> list[float]:
    return [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _short(value: float) -> str:
    return f"{value:g}"


def _vertical(x: float, text: str) -> str:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_GRID}"/>'
    return line + _label(x, _HEIGHT - _BOTTOM + 18, text, "middle", _INK)


def _horizontal(y: float, text: str) -> str:
    line = f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
    return line + _label(_LEFT - 8, y + 4, text, "end", _INK)


def _label(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
