"""Output of several commands: tables on stdout, and files."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from kernelpro.records import BadInput


def table_console(width: int = 160) -> Console:
    """A console on stdout. `width` applies if stdout is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else width)


def write_file(path: str | Path, text: str, option: str) -> None:
    """Write the file given by `option`. Raises BadInput if that fails."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{option} {path}: cannot be written ({error.strerror})") from None
