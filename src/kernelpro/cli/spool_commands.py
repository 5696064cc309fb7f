"""`kernelpro spool`: its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelpro.cli.misuse import clearly

spool_app = typer.Typer(
    no_args_is_help=True, help="Jobs and results as files: what is there, one file out, one file in."
)


@spool_app.command()
def status(
    folder: Annotated[str, typer.Argument(help="The spool's folder.")],
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What is open, who is at it, and who is there to work."""
    from kernelpro.cli import spooling

    raise typer.Exit(clearly(spooling.status, folder, json_lines))


@spool_app.command()
def pack(
    folder: Annotated[str, typer.Argument(help="The spool's folder.")],
    out: Annotated[str, typer.Argument(help="File to write: all jobs without a result, one a line.")],
) -> None:
    """The open jobs as one file, to be carried to a machine with the hardware: `kernelpro worker FILE --once` there."""
    from kernelpro.cli import spooling

    raise typer.Exit(clearly(spooling.pack, folder, out))


@spool_app.command()
def merge(
    folder: Annotated[str, typer.Argument(help="The spool's folder.")],
    sources: Annotated[
        list[str], typer.Argument(help="Files with results, or folders of them, or a copy of the spool.")
    ],
) -> None:
    """Take in what came back. Exit code 1: some of it could not be used, and is named."""
    from kernelpro.cli import spooling

    raise typer.Exit(clearly(spooling.merge, folder, sources))
