# ruff: noqa: I001 (the order of these imports is the order of the commands in --help)
"""The commands: options and help texts. They import what they need when they run, so --help is instant."""

from __future__ import annotations

from kernelpro.cli.commands.app import app
from kernelpro.cli.commands import init, optimize, judge, profile, runs, ui, bench
from kernelpro.cli.commands import worker, diagnostics, code_search, knowledge, doctor

__all__ = [
    "app",
    "bench",
    "code_search",
    "diagnostics",
    "doctor",
    "init",
    "judge",
    "knowledge",
    "optimize",
    "profile",
    "runs",
    "ui",
    "worker",
]
