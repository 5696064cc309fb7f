"""The plot of `kernelpro profile`: the time account above the roofline, as one SVG document."""

from __future__ import annotations

from kernelpro.records import Diagnosis
from kernelpro.report import account_plot, roofline_plot
from kernelpro.report.svg import HEIGHT, WIDTH


def plot_svg(diagnosis: Diagnosis, title: str) -> str:
    """The plot as an SVG document. Without a time account, it is the roofline alone."""
    if not diagnosis.account:
        return roofline_plot.plot_svg(diagnosis.roofline, title)
    top = account_plot.plot_height(diagnosis.account)
    roofline = roofline_plot.plot_svg(diagnosis.roofline, "Roofline")
    placed = roofline.replace("<svg ", f'<svg y="{top}" width="{WIDTH}" height="{HEIGHT}" ', 1)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + HEIGHT}">',
            account_plot.plot_svg(diagnosis.account, title),
            placed,
            "</svg>",
            "",
        ]
    )
