"""`kernelpro runs`, `show`, `export` and `report`: their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import OUTPUT, JsonOptions, RunArgument, RunsDirOptions, add_command, option


@dataclass(frozen=True, kw_only=True)
class RunsOptions(JsonOptions, RunsDirOptions):
    """Options of `kernelpro runs`."""

    delete: Annotated[list[str], typer.Option(metavar="RUN", help="Delete this run instead. Repeatable.")] = (
        field(default_factory=list)
    )


@add_command(app, RunsOptions)
def runs(options: RunsOptions) -> int:
    """List all runs: their state (running, waiting, finished, failed, stopped) and their best kernel."""
    from kernelpro.cli.runs import delete_runs, list_runs

    return delete_runs(options) if options.delete else list_runs(options)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(JsonOptions, RunsDirOptions):
    """Options of `kernelpro show`."""

    run: RunArgument
    step: Annotated[
        int | None,
        typer.Argument(
            metavar="STEP",
            help="Show one step: verdict, findings, prompts and answers, diff to its parent, source.",
        ),
    ] = None
    plot: Annotated[
        str | None, option("Write the plot of speed against energy to this SVG file.", OUTPUT, metavar="FILE")
    ] = None


@add_command(app, ShowOptions)
def show(options: ShowOptions) -> int:
    """Show the search tree of a run, or one step of it."""
    from kernelpro.cli.runs import show_run

    return show_run(options)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(RunsDirOptions):
    """Options of `kernelpro export`."""

    run: RunArgument
    step: Annotated[int | None, typer.Option(help="The step to export; default: the winner.")] = None
    out: Annotated[
        str | None,
        option(
            "File or folder to write; default: RUN.py or RUN, with _ for - so that Python can import it.",
            OUTPUT,
            "--out",
            "-o",
            metavar="PATH",
        ),
    ] = None
    package: Annotated[
        bool,
        option("Write an installable package: a folder with pyproject.toml and tests.", OUTPUT, "--package"),
    ] = False


@add_command(app, ExportOptions)
def export(options: ExportOptions) -> int:
    """Write the winner as a drop-in module: one Python file that needs only torch and a compiler."""
    from kernelpro.cli.runs import export_run

    return export_run(options)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(RunsDirOptions):
    """Options of `kernelpro report`."""

    run: RunArgument
    format: Annotated[
        Literal["html", "md", "json"],
        option("Format of the report; html is a single file that works offline.", OUTPUT),
    ] = "html"
    out: Annotated[
        str | None,
        option(
            "File to write, or - for stdout; default: a file in the run's folder.",
            OUTPUT,
            "--out",
            "-o",
            metavar="FILE",
        ),
    ] = None


@add_command(app, ReportOptions)
def report(options: ReportOptions) -> int:
    """Write a report of a run: verdict, search tree, roofline, every step, and how to reproduce it."""
    from kernelpro.cli.runs import write_report

    return write_report(options)
