"""The end of `__init__.py` of an exported package."""

from __future__ import annotations

from typing import Any

_EXPORT_SPECS: list[dict[str, Any]] = []
_EXPORT_NUMBERS: list[int] = []
_EXPORT_ENTRY = _EXPORT_FORM = _EXPORT_SKELETON = ""
_PROVIDES_RUNTIME = False

# --- exported below ------------------------------------------------------------------------------------
import functools  # noqa: E402
import importlib  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402, F811

from kernelpro.dropin import exported as _exported  # noqa: E402
from kernelpro.dropin import module as _module  # noqa: E402
from kernelpro.dropin import self_test as _self_test  # noqa: E402


def _export_kernel(number: int) -> Any:
    if _PROVIDES_RUNTIME:
        importlib.import_module(f"{__name__}.native")._export_provide_modules()
    name = f"kernel_{number + 1}" if number else "kernel"
    return importlib.import_module(f"{__name__}.{name}").ModelNew


def _export_factory(number: int) -> Any:
    return _export.factories[number]


def _export_recreate(*arguments: Any) -> Any:
    return _module.recreate(*arguments)


def self_test() -> int:
    """Exit code 0: correct, 1: wrong, 77: it cannot run here."""
    return _self_test.run_self_test(_export)


_bundled = Path(__file__).parent / "bundled"
if _bundled.is_dir():
    sys.path.append(str(_bundled))  # after everything that is installed
_export = _exported.ExportedKernel(
    __name__,
    _EXPORT_SPECS,
    [functools.partial(_export_kernel, number) for number in _EXPORT_NUMBERS],
    f"{__name__}.reference",
    _EXPORT_ENTRY,
    _EXPORT_FORM,
    {},
    _EXPORT_SKELETON,
    (_export_factory, _export_recreate),
)
