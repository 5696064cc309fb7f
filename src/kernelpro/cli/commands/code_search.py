"""`kernelpro code-search`: its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import JsonOptions, add_command


@dataclass(frozen=True, kw_only=True)
class CodeSearchOptions(JsonOptions):
    """Options of `kernelpro code-search`. They select one action at most."""

    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="Words or identifiers, such as `tma load sm90`.")
    ] = None
    tree: Annotated[
        str, typer.Option("--in", help="Where to search: cutlass, a name given with --add, or a folder.")
    ] = "cutlass"
    outline: Annotated[str | None, typer.Option(metavar="PATH", help="List what a file defines.")] = None
    read: Annotated[str | None, typer.Option(metavar="PATH:10-60", help="Print lines of a file.")] = None
    definition: Annotated[
        str | None, typer.Option("--def", metavar="SYMBOL", help="Find where a symbol is defined.")
    ] = None
    uses: Annotated[str | None, typer.Option(metavar="SYMBOL", help="Find where a symbol is used.")] = None
    regex: Annotated[bool, typer.Option("--regex", help="Treat the query as a regular expression.")] = False
    exact: Annotated[bool, typer.Option("--exact", help="Search for the query as literal text.")] = False
    glob: Annotated[
        str, typer.Option(help="With --regex or --exact: search only files that match this pattern.")
    ] = ""
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 10
    add: Annotated[str | None, typer.Option(metavar="NAME=PATH", help="Name a folder, for --in.")] = None
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove the name of a folder.")] = None


@add_command(app, CodeSearchOptions, "code-search")
def code_search(options: CodeSearchOptions) -> int:
    """Search the source of CUTLASS or of any folder. Agents use the same search.

    Without arguments, list the named folders. Exit code 0: found; 1: nothing found.
    """
    from kernelpro.cli.code_search import search_code

    return search_code(options)
