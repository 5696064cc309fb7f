"""The roofline as SVG: the roofs, the task's intensity, and the candidate below its roof."""

from __future__ import annotations

import math

from kernelpro.records.profiling import RooflinePosition
from kernelpro.report import svg
from kernelpro.report.schema import RooflineChart
from kernelpro.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

_ROOF, _DOT = "#0969da", "#cf222e"
_STOP = {"baseline": "#57606a", "step": "#1a7f37"}


def plot_svg(position: RooflinePosition, title: str) -> str:
    """The roofline of one profile as an SVG document."""
    bandwidth, roof, ridge = position.roof_bandwidth, position.roof_flops, position.ridge
    intensity, rate = max(position.intensity, 1e-3), max(position.flops_per_second, 1.0)
    left, right = _decade_below(min(intensity, ridge) / 8), _decade_above(max(intensity, ridge) * 8)
    low, high = _decade_below(min(rate, left * bandwidth * 4) / 2), _decade_above(roof * 1.5)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / left) / math.log(right / left)

    def y(value: float) -> float:
        relative = math.log(max(value, low) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * relative

    attainable = min(roof, intensity * bandwidth)
    start = max(left, low / bandwidth)
    middle = math.sqrt(start * ridge)
    text = f"{position.time_ms:.3f} ms, {position.of_floor:.0%} of the floor"
    anchor, shift = ("end", -12) if x(intensity) > WIDTH * 0.6 else ("start", 12)
    roofs = [(x(start), y(start * bandwidth)), (x(ridge), y(roof)), (x(right), y(roof))]
    parts = [
        *(svg.grid_x(x(value), f"{value:g}") for value in _decades(left, right)),
        *(svg.grid_y(y(value), f"{value / 1e12:g}") for value in _decades(low, high)),
        svg.polyline(roofs, _ROOF, 2.5),
        svg.label(x(right) - 6, y(roof) - 8, f"{roof / 1e12:.3g} TFLOP/s", "end", _ROOF),
        svg.label(x(middle) - 8, y(middle * bandwidth) - 8, f"{bandwidth / 1e12:.3g} TB/s", "end", _ROOF),
        svg.line(x(intensity), y(rate), x(intensity), y(attainable), _DOT, 'stroke-dasharray="4 3"'),
        svg.circle(x(intensity), y(attainable), 4, f'fill="white" stroke="{_ROOF}" stroke-width="2"'),
        svg.circle(x(intensity), y(rate), 6, f'fill="{_DOT}"'),
        svg.label(x(intensity) + shift, y(rate) + 4, text, anchor, _DOT),
    ]
    return svg.document(title, "operations per byte", "TFLOP/s", parts)


def plot_path_svg(chart: RooflineChart, title: str) -> str:
    """The path of a run from its baselines to its best kernel, as an SVG document."""
    rates = [stop.flops_per_second for stop in chart.stops]
    roof = chart.rates[chart.unit]
    left = _decade_below(min(chart.intensity, chart.ridge) / 3)
    right = _decade_above(max(chart.intensity, chart.ridge) * 3)
    low, high = _decade_below(min(*rates, chart.attainable) / 1.5), _decade_above(roof * 1.05)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / left) / math.log(right / left)

    def y(value: float) -> float:
        relative = math.log(max(value, low) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * relative

    start = max(left, low / chart.bandwidth)
    roofs = [(x(start), y(start * chart.bandwidth)), (x(chart.ridge), y(roof)), (x(right), y(roof))]
    at = x(chart.intensity)
    parts = [
        *(svg.grid_x(x(value), f"{value:g}") for value in _decades(left, right)),
        *(svg.grid_y(y(value), f"{value / 1e12:g}") for value in _decades(low, high)),
        svg.polyline(roofs, _ROOF, 2.5),
        svg.label(x(right) - 6, y(roof) - 8, f"{chart.unit} {roof / 1e12:.3g} TFLOP/s", "end", _ROOF),
        svg.polyline([(at, y(rate)) for rate in rates], _DOT, 1.2),
        svg.circle(at, y(chart.attainable), 5, f'fill="white" stroke="{_ROOF}" stroke-width="2"'),
        svg.label(at - 12, y(chart.attainable) + 4, "floor", "end", _ROOF),
    ]
    anchor, shift = ("end", -12) if at > WIDTH * 0.6 else ("start", 12)
    place = math.inf
    for stop in sorted(chart.stops, key=lambda stop: stop.flops_per_second):
        is_winner, height = stop.kind == "winner", y(stop.flops_per_second)
        color = _DOT if is_winner else _STOP[stop.kind]
        parts.append(svg.circle(at, height, 6 if is_winner else 4, f'fill="{color}" stroke="white"'))
        if is_winner or stop.kind == "baseline" or height + 4 < place - 13:
            place = min(height + 4, place - 13)
            parts.append(svg.label(at + shift, place, f"{stop.label}: {stop.ms:.4g} ms", anchor, color))
    return svg.document(title, "operations per byte", "TFLOP/s", parts)


def _decade_below(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value)))


def _decade_above(value: float) -> float:
    return float(10.0 ** math.ceil(math.log10(value)))


def _decades(low: float, high: float) -> list[float]:
    return [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]
