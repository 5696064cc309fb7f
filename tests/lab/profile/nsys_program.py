"""Traces a program with nsys outside the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernelpro.lab.profile import nsys
from kernelpro.lab.profile.trace import Trace
from kernelpro.records import Skipped


def trace_program(
    run: Callable[[list[str]], tuple[int, str]],
    target: Sequence[str],
    folder: Path,
    binary: str | None = None,
) -> Trace | Skipped:
    """Trace a program that calls `run_under_nsys`; `run` executes a command and returns its status and output."""
    binary = binary or nsys.find_nsys()
    if binary is None:
        return nsys.not_found()
    report = folder / "trace.nsys-rep"
    status, output = run(nsys.profile_command(binary, report, target))
    if report.exists():
        status, output = run(nsys.export_command(binary, report, folder / "trace.sqlite"))
    return nsys.load_trace(folder, status, output)
