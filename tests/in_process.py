"""Commands without a process of their own, for tests of what is refused before anything starts."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess

from kernelpro.cli.commands import app
from kernelpro.cli.errors import run_reporting_errors


def kernelpro(*arguments: object) -> CompletedProcess[str]:
    """Run a command as `kernelpro ARGUMENTS` does, with its exit code and its output."""
    words, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_reporting_errors(lambda: app(words, standalone_mode=False))
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
