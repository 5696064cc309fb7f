"""Building blocks of the SVG plots: a fixed frame, lines and labels."""

from __future__ import annotations

from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 44, 52
"""Margins of the plot area."""
INK, GRID = "#24292f", "#d8dee4"


def document(title: str, x_title: str, y_title: str, parts: list[str]) -> str:
    """A complete SVG document with titles."""
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            title_text(title),
            *parts,
            label((LEFT + WIDTH) / 2, HEIGHT - 14, x_title, "middle"),
            f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle" fill="{INK}">'
            f"{escape(y_title)}</text>",
            "</svg>",
            "",
        ]
    )


def title_text(text: str) -> str:
    """The title of a plot."""
    return f'<text x="{LEFT}" y="24" font-size="15" fill="{INK}">{escape(text)}</text>'


def label(x: float, y: float, text: str, anchor: str, color: str = INK) -> str:
    """A text at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, color: str, style: str = "") -> str:
    """A line between two points."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" {style}/>'


def polyline(points: list[tuple[float, float]], color: str, width: float) -> str:
    """A line through all points."""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{color}" stroke-width="{width}" points="{corners}"/>'


def circle(x: float, y: float, radius: float, style: str) -> str:
    """A circle at a point."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {style}/>'


def grid_x(x: float, text: str) -> str:
    """A vertical grid line with its label."""
    return line(x, TOP, x, HEIGHT - BOTTOM, GRID) + label(x, HEIGHT - BOTTOM + 18, text, "middle")


def grid_y(y: float, text: str) -> str:
    """A horizontal grid line with its label."""
    return line(LEFT, y, WIDTH - RIGHT, y, GRID) + label(LEFT - 8, y + 4, text, "end")
