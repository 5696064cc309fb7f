"""The command line.

commands/      the options and help text of each command    options.py   options that several commands share
judge.py, profile.py, optimize.py, bench.py, runs.py, knowledge.py, code_search.py, diagnostics.py, spool.py,
doctor.py, init.py, ui.py    what each command does
display.py     the live display of a run                    parsing.py   --budget, --role and --price
pools.py       --pool                                       errors.py    errors and exit codes
output.py      tables and files
"""

from __future__ import annotations

import sys

_LIBRARIES = ("typer", "rich", "jinja2")
_INTERRUPTED = 130


def main() -> None:
    """Run the command in sys.argv. Without the libraries that it needs, only `kernelpro worker` runs."""
    try:
        _run_command()
    except KeyboardInterrupt:  # while modules are imported; commands handle it themselves
        print("kernelpro: stopped", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _run_command() -> None:
    try:
        from kernelpro.cli.commands import app
        from kernelpro.cli.errors import run_reporting_errors

        sys.exit(run_reporting_errors(lambda: app(standalone_mode=False)))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
    if sys.argv[1:2] == ["worker"]:
        sys.exit(_run_worker())
    print(
        f"kernelpro: {missing} is not installed for {sys.executable}: pip install {' '.join(_LIBRARIES)} "
        "(`kernelpro worker` runs without them)",
        file=sys.stderr,
    )
    sys.exit(2)


def _run_worker() -> int:
    """`kernelpro worker` where only Python and torch are installed."""
    import argparse

    from kernelpro.cli import spool
    from kernelpro.pools.spool.main import main as serve_spool
    from kernelpro.records import BadInput

    sys.argv = [f"{sys.argv[0]} worker", *sys.argv[2:]]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--pack")
    parser.add_argument("--sandbox", default="auto", choices=("auto", "namespaces", "landlock", "process"))
    arguments, rest = parser.parse_known_args()
    if rest:  # a spool and its options, parsed as the packed worker parses them
        serve_spool()
    try:
        return spool.run_worker(None, pack=arguments.pack, sandbox=arguments.sandbox)
    except BadInput as error:
        print(f"kernelpro: {error}", file=sys.stderr)
        return 2
