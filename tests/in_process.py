"""Commands without a process of their own: what is refused before anything starts, and, with a pool that is open already, what
workers do."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from typing import TYPE_CHECKING

import pytest

from kernelpro.cli.commands import app
from kernelpro.cli.errors import run_reporting_errors

if TYPE_CHECKING:
    from kernelpro.pools.local import LocalPool


def kernelpro(*arguments: object) -> CompletedProcess[str]:
    """Run a command as `kernelpro ARGUMENTS` does, with its exit code and its output."""
    words, out, err = [*map(str, arguments)], io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_reporting_errors(lambda: app(words, standalone_mode=False))
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())


@contextmanager
def lent(pool: LocalPool) -> Iterator[None]:
    """All local pools that are opened meanwhile are this one, and whoever closes them leaves it open."""
    from kernelpro.pools import factory, local

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "close", lambda: None)
        for module in (factory, local):
            patch.setattr(module, "LocalPool", lambda *_, **__: pool)
        yield


class WarmCommand:
    """Commands in this process whose local pool is one that is open already."""

    def __init__(self, pool: LocalPool):
        self._pool = pool

    def __call__(self, *arguments: object, **changes: str) -> CompletedProcess[str]:
        """Run a command as `kernelpro ARGUMENTS` does, with these changes of the environment; the worker has its own."""
        with lent(self._pool), pytest.MonkeyPatch.context() as patch:
            for name, value in changes.items():
                patch.setenv(name, value)
            return kernelpro(*arguments)
