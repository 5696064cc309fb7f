"""The search tree as SVG, from left to right: one row for each leaf, each parent centered on its children.

The layout is that of the live page (ui/assets/tree.js).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.report import svg
from kernelpro.report.schema import StepSummary

_LEVEL, _ROW, _MARGIN, _TOP, _LABEL = 92, 32, 46, 56, 170
_COLORS = {
    "passed": "#1a7f37",
    "wrong": "#cf222e",
    "cheating": "#a626a4",
    "build_failed": "#bc4c00",
    "crashed": "#8250df",
    "timed_out": "#8a6100",
    "refused": "#6e4030",
}
_FADED, _ACCENT = "#8c959f", "#0757ba"


def plot_svg(steps: Sequence[StepSummary], title: str) -> str:
    """The chart as an SVG document."""
    children: dict[int, list[StepSummary]] = {}
    for step in steps:
        children.setdefault(step.parent, []).append(step)
    places, rows = _layout(children)
    width = _MARGIN + _LEVEL * max(level for level, _ in places.values()) + _LABEL
    height = _TOP + _ROW * rows + 20

    def at(number: int) -> tuple[float, float]:
        level, row = places[number]
        return _MARGIN + _LEVEL * level, _TOP + _ROW * row + _ROW / 2

    edges, nodes = [], [svg.circle(*at(0), 7, f'fill="{svg.INK}"')]
    nodes.append(svg.label(at(0)[0], at(0)[1] - 12, "reference", "middle"))
    for step in steps:
        (x1, y1), (x2, y2) = at(step.parent if step.parent in places else 0), at(step.number)
        middle = (x1 + x2) / 2
        style = f'stroke="{_ACCENT}" stroke-width="2.2"' if step.on_path else 'stroke="#b8c0c8"'
        curve = f"M{x1:.1f},{y1:.1f}C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
        edges.append(f'<path fill="none" {style} d="{curve}"/>')
        nodes.append(_node(step, x2, y2, step.number not in children))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11.5">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            svg.title_text(title).replace(f'x="{svg.LEFT}"', 'x="20"'),
            *edges,
            *nodes,
            "</svg>",
            "",
        ]
    )


def _layout(children: dict[int, list[StepSummary]]) -> tuple[dict[int, tuple[int, float]], int]:
    """Level and row of each node, and the number of rows. Not recursive, because branches may be deep."""
    places: dict[int, tuple[int, float]] = {}
    rows, stack = 0, [(0, 0, False)]
    while stack:
        number, level, is_done = stack.pop()
        below = children.get(number, [])
        if is_done:
            ends = [places[child.number][1] for child in (below[0], below[-1])]
            places[number] = (level, sum(ends) / 2)
        elif below:
            stack.append((number, level, True))
            stack += [(child.number, level + 1, False) for child in reversed(below)]
        else:
            places[number] = (level, rows)
            rows += 1
    return places, rows


def _node(step: StepSummary, x: float, y: float, is_leaf: bool) -> str:
    color = _ACCENT if step.is_winner else _COLORS.get(step.state, _FADED)
    if step.ms and step.hardest_baseline:
        ratio = step.speedup[step.hardest_baseline].value
        text, radius = f"{step.number}: {ratio:.2f}x", min(10.0, max(4.0, 4.0 + 2.2 * ratio**0.5))
        shape = svg.circle(x, y, round(radius, 1), f'fill="{color}" stroke="white"')
    else:
        text, radius = f"{step.number}: {step.state.replace('_', ' ')}", 4.5
        fill = color if step.state in _COLORS else "white"
        shape = (
            f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{fill}" stroke="{color}"/>'
        )
    if step.is_winner:
        text = f"★ {text}"
    weight = ' font-weight="bold"' if step.on_path else ""
    ink = svg.INK if step.on_path else "#57606a"
    if is_leaf:
        label = svg.label(x + radius + 5, y + 4, text, "start", ink)
    else:
        label = svg.label(x, y - radius - 4, text, "middle", ink)
    return shape + label.replace("<text", f"<text{weight}")
