"""The command line: `commands`, and a worker that does without the libraries they need."""

from __future__ import annotations

import sys

_LIBRARIES = ("typer", "rich", "jinja2")


def main() -> None:
    try:
        from kernelpro.cli.commands import app

        app()
        return
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
    if sys.argv[1:2] == ["worker"]:
        sys.exit(_worker())
    print(
        f"kernelpro: {missing} is not installed for {sys.executable}: pip install {' '.join(_LIBRARIES)} "
        "(`kernelpro worker` alone does without)",
        file=sys.stderr,
    )
    sys.exit(2)


def _worker() -> int:
    """`kernelpro worker` where there is Python and torch alone."""
    import argparse

    from kernelpro.cli import spooling
    from kernelpro.pools.spool.main import main as work
    from kernelpro.records import BadInput

    sys.argv = [f"{sys.argv[0]} worker", *sys.argv[2:]]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--pack")
    parser.add_argument("--sandbox", default="auto", choices=("auto", "namespaces", "landlock", "process"))
    given, rest = parser.parse_known_args()
    if rest:  # a spool, as the packed worker is given one
        work()
    try:
        return spooling.worker(None, False, 0.0, 0.0, "", given.pack, given.sandbox)
    except BadInput as error:
        print(f"kernelpro: {error}", file=sys.stderr)
        return 2
