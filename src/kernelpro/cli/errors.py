"""Errors of a command as one line on stderr and an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable

import typer

INTERRUPTED = 130
INTERNAL_ERROR = 4
BROKEN_PIPE = 141
_BUDGET_OPTION = re.compile(r"No such option:? --(candidates|dollars|tokens|wall|device)\b")


def run_reporting_errors(run: Callable[[], int | None]) -> int:
    """Run a command, print its errors, and return its exit code: the command's own, or 2 for bad input, 3 for
    outstanding results, 4 for a bug of KernelPro, 130 if interrupted."""
    from kernelpro.pools.pool import ResultPending
    from kernelpro.records import BadInput, InternalError
    from kernelpro.records.base import describe_bug

    try:
        code = run() or 0
    except typer.TyperException as error:
        message = " ".join(error.format_message().split()).replace("Value error, ", "")
        if mistaken := _BUDGET_OPTION.search(message):
            message = f"{mistaken[0]}; use --budget {mistaken[1]}=N"
        if message.startswith("Missing argument"):
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "kernelpro"
            message = f"{message.rstrip('.')}; `{command} --help` explains it"
        if message:  # empty where help was printed because no command was given
            print_error(message)
        return 2
    except ResultPending as error:
        print_error(f"{error}; run the same command again when the result has arrived")
        return 3
    except InternalError as error:
        print_error(str(error))
        return INTERNAL_ERROR
    except BadInput as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of the output has ended, as in `kernelpro show RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except ModuleNotFoundError:
        raise
    except Exception as error:
        traceback.print_exc()
        print_error(describe_bug(error))
        return INTERNAL_ERROR
    if code == INTERRUPTED:
        print_error("stopped")
    return code


def print_error(message: str) -> None:
    """Print a line for the user on stderr."""
    print(f"kernelpro: {message}", file=sys.stderr, flush=True)
