"""Bad input is one clear line and an exit code, whatever the command."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer


def check(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        misuse(f"{option} {value}: not one of {', '.join(allowed)}")


def misuse(message: str) -> NoReturn:
    print(f"kernelpro: {message}", file=sys.stderr)
    raise typer.Exit(2)


def clearly(command: Any, *arguments: Any) -> int:
    """Run a command; bad input is one line and exit code 2."""
    from kernelpro.pools.pool import Outstanding
    from kernelpro.records import BadInput

    try:
        return int(command(*arguments))
    except Outstanding as error:
        print(f"kernelpro: {error}; bring its result and call again", file=sys.stderr)
        return 3
    except BadInput as error:
        print(f"kernelpro: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kernelpro: stopped", file=sys.stderr)
        return 130
