"""`kernelpro ui` and `plot`: their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import OUTPUT, RunArgument, RunsDirOptions, add_command, option


@dataclass(frozen=True, kw_only=True)
class UiOptions(RunsDirOptions):
    """Options of `kernelpro ui`."""

    host: Annotated[
        str, option("Address to listen on. Unless it is loopback, every request needs the token.", OUTPUT)
    ] = "127.0.0.1"
    port: Annotated[
        int | None, option("Port; default: the first free one from 8640 on.", OUTPUT, min=0, max=65535)
    ] = None
    benches_dir: Annotated[
        str | None, option("Folder of benches; default: `benches` beside the folder of runs.", OUTPUT)
    ] = None


@add_command(app, UiOptions)
def ui(options: UiOptions) -> int:
    """Serve a web page on which you watch runs while they work, and steer them."""
    from kernelpro.cli.ui import serve_page

    return serve_page(options)


@dataclass(frozen=True, kw_only=True)
class PlotOptions(RunsDirOptions):
    """Options of `kernelpro plot`."""

    run: RunArgument
    chart: Annotated[
        Literal["tree", "progress", "roofline", "account"],
        typer.Argument(metavar="CHART", help="tree, progress, roofline or account (where time goes)."),
    ]
    out: Annotated[
        str | None,
        option("File to write, .svg or .png; default: RUN-CHART.svg.", OUTPUT, "--out", "-o", metavar="FILE"),
    ] = None
    step: Annotated[
        int | None, option("With account: the step whose time is drawn; default: the best step.", OUTPUT)
    ] = None
    scale: Annotated[
        float, option("Scale of a PNG: pixels per unit of the drawing.", OUTPUT, min=0.1, max=20)
    ] = 2.0


@add_command(app, PlotOptions)
def plot(options: PlotOptions) -> int:
    """Draw a chart of a run as SVG or PNG, for papers and slides."""
    from kernelpro.cli.ui import write_plot

    return write_plot(options)
