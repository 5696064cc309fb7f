"""`kernelpro knowledge`: its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import JsonOptions, add_command


@dataclass(frozen=True, kw_only=True)
class KnowledgeOptions(JsonOptions):
    """Options of `kernelpro knowledge`."""

    export_file: Annotated[
        str | None, typer.Option("--export", metavar="FILE", help="Write all observations to a JSON file.")
    ] = None
    import_file: Annotated[
        str | None,
        typer.Option("--import", metavar="FILE", help="Add the observations that another machine exported."),
    ] = None
    forget: Annotated[bool, typer.Option("--forget", help="Delete all observations.")] = False


@add_command(app, KnowledgeOptions)
def knowledge(options: KnowledgeOptions) -> int:
    """Show what runs have learned: the observed gain of each method, by bottleneck and hardware."""
    from kernelpro.cli.knowledge import show_knowledge

    return show_knowledge(options)
