"""Micro-profiling tools, one a file; each defines `TOOL`. `registry` finds them, and those of third parties."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

from kernelpro.diagnose.diagnostic import Diagnostic
from kernelpro.records import BadInput

GROUP = "kernelpro.tools"
"""Entry points under this name are tools: each names a `Tool` or a module with `TOOL`."""


def registry(files: Iterable[Path] = ()) -> dict[str, Diagnostic]:
    """All tools by name: the shipped ones, installed ones, then those in `files`. A later one replaces an earlier of its name."""
    found = [
        _tool(importlib.import_module(f"{__name__}.{module.name}"), module.name)
        for module in pkgutil.iter_modules(__path__)
    ]
    found += _installed()
    found += [_from_file(path) for path in files]
    return {tool.name: tool for tool in found}


def _installed() -> Iterator[Diagnostic]:
    """Tools of other packages. One that cannot be imported is left out, with a line on stderr: the others still work."""
    for point in entry_points(group=GROUP):
        try:
            yield _tool(point.load(), point.name)
        except (Exception, SystemExit) as error:
            print(
                f"kernelpro: the installed tool {point.name} ({point.value}) is left out: {_said(error)}",
                file=sys.stderr,
            )


def _tool(thing: object, name: str) -> Diagnostic:
    tool = getattr(thing, "DIAGNOSTIC", thing)
    if not isinstance(tool, Diagnostic):
        raise BadInput(f"{name} is not a tool: define DIAGNOSTIC = kernelpro.diagnose.Diagnostic(...)")
    return tool


def _from_file(path: Path) -> Diagnostic:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BadInput(f"tool file not found or not Python: {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(f"tool file {path} cannot be imported: {_said(error)}") from None
    return _tool(module, str(path))


def _said(error: BaseException) -> str:
    """One line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
