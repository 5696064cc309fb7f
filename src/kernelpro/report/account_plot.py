"""The time account as SVG: a bar from zero to the measured time, and a line for each part."""

from __future__ import annotations

from collections.abc import Sequence

from kernelpro.diagnose.account.parts import summarize
from kernelpro.records import AccountPart
from kernelpro.report import svg
from kernelpro.report.svg import LEFT, RIGHT, WIDTH

_FLOOR = "#57606a"
_COLORS = ("#0969da", "#bf3989", "#9a6700", "#1a7f37", "#8250df", "#cf222e", "#bc4c00", "#218bff")
_REST = "#d0d7de"
_BAR_Y, _BAR_HEIGHT, _ROW = 44, 34, 22
_SHORT = 96
"""Number of characters of a row that fit the width."""


def plot_svg(parts: Sequence[AccountPart], title: str) -> str:
    """The chart as an SVG document."""
    rows = summarize(parts)
    total = sum(row.ms for row in rows)
    width, x = WIDTH - LEFT - RIGHT, float(LEFT)
    height = plot_height(parts)
    shapes, colors = [], iter(_COLORS)
    for index, row in enumerate(rows):
        color = _FLOOR if row.part == "floor" else _REST if row.part is None else next(colors, _REST)
        length = width * row.ms / total if total else 0.0
        shapes.append(
            f'<rect x="{x:.1f}" y="{_BAR_Y}" width="{length:.1f}" height="{_BAR_HEIGHT}" fill="{color}"/>'
        )
        x += length
        line_y = _BAR_Y + _BAR_HEIGHT + 44 + _ROW * index
        shapes.append(f'<rect x="{LEFT}" y="{line_y - 11}" width="12" height="12" fill="{color}"/>')
        where = f"  ({', '.join(row.lines)})" if row.lines else ""
        text = f"{row.ms / total:4.0%}   {row.ms:.4f} ms   {row.title}{where}"
        shapes.append(svg.label(LEFT + 22, line_y, text[:_SHORT], "start"))
    scale_y = _BAR_Y + _BAR_HEIGHT + 18
    shapes.append(svg.label(LEFT, scale_y, "0", "middle"))
    shapes.append(svg.label(LEFT + width, scale_y, f"{total:.4f} ms", "end"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            svg.title_text(title),
            *shapes,
            "</svg>",
            "",
        ]
    )


def plot_height(parts: Sequence[AccountPart]) -> int:
    """The height of the chart of these parts, in pixels."""
    return _BAR_Y + _BAR_HEIGHT + 44 + _ROW * len(summarize(parts)) + 8
