"""`kernelpro diagnostics`: its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import JsonOptions, add_command


@dataclass(frozen=True, kw_only=True)
class DiagnosticsOptions(JsonOptions):
    """Options of `kernelpro diagnostics`."""

    diagnostic: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="Add a diagnostic of your own: a Python file. Repeatable."),
    ] = field(default_factory=list)
    page: Annotated[
        bool, typer.Option("--page", help="Print the reference page in Markdown: trigger, advice and gain.")
    ] = False


@add_command(app, DiagnosticsOptions)
def diagnostics(options: DiagnosticsOptions) -> int:
    """List the diagnostics that `profile` runs: what each one examines, when it reports, what it needs."""
    from kernelpro.cli.diagnostics import list_diagnostics

    return list_diagnostics(options)
