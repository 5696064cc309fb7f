"""`kernelpro init`: its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kernelpro.cli.commands.app import app
from kernelpro.cli.options import add_command


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of `kernelpro init`."""

    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write; it must not exist yet.")] = (
        "task.py"
    )


@add_command(app, InitOptions)
def init(options: InitOptions) -> int:
    """Write a commented task file to start from."""
    from kernelpro.cli.init import write_task_file

    return write_task_file(options.file)
