"""Diagnostics, one per file; each file defines `DIAGNOSTIC`. `registry` also loads those of third parties."""

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

ENTRY_POINT_GROUP = "kernelpro.diagnostics"
"""Entry points in this group name a `Diagnostic`, or a module that defines `DIAGNOSTIC`."""


def registry(files: Iterable[Path] = ()) -> dict[str, Diagnostic]:
    """All diagnostics by name: built-in, installed, then those in `files`; the last of a name wins."""
    diagnostics = [
        _diagnostic_in(importlib.import_module(f"{__name__}.{module.name}"), module.name)
        for module in pkgutil.iter_modules(__path__)
    ]
    diagnostics += _installed()
    diagnostics += [_from_file(path) for path in files]
    return {diagnostic.name: diagnostic for diagnostic in diagnostics}


def _installed() -> Iterator[Diagnostic]:
    """Diagnostics of other packages. One that cannot be imported is left out, with a warning on stderr."""
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            yield _diagnostic_in(point.load(), point.name)
        except (Exception, SystemExit) as error:
            warning = f"ignoring the installed diagnostic {point.name} ({point.value}): {_first_line(error)}"
            print(f"kernelpro: {warning}", file=sys.stderr)


def _diagnostic_in(module: object, name: str) -> Diagnostic:
    diagnostic = getattr(module, "DIAGNOSTIC", module)
    if not isinstance(diagnostic, Diagnostic):
        raise BadInput(f"{name} is not a diagnostic: define DIAGNOSTIC = kernelpro.diagnose.Diagnostic(...)")
    return diagnostic


def _from_file(path: Path) -> Diagnostic:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise BadInput(f"diagnostic file not found or not Python: {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(f"diagnostic file {path} cannot be imported: {_first_line(error)}") from None
    return _diagnostic_in(module, str(path))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
