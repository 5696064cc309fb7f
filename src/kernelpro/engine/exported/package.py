"""The end of `__init__.py` of an exported package."""

from __future__ import annotations

from typing import Any

_EXPORT_SPEC: dict[str, Any] = {}
_EXPORT_ENTRY = _EXPORT_FORM = _EXPORT_SKELETON = ""
_PROVIDES_RUNTIME = False

# --- exported below ------------------------------------------------------------------------------------
import importlib  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402, F811

from kernelpro.dropin import exported as _exported  # noqa: E402
from kernelpro.dropin import module as _module  # noqa: E402
from kernelpro.dropin import self_test as _self_test  # noqa: E402


def _export_kernel() -> Any:
    if _PROVIDES_RUNTIME:
        importlib.import_module(f"{__name__}.native")._export_provide_modules()
    return importlib.import_module(f"{__name__}.kernel").ModelNew


def _export_factory() -> Any:
    return _export.factory


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
    _EXPORT_SPEC,
    _export_kernel,
    f"{__name__}.reference",
    _EXPORT_ENTRY,
    _EXPORT_FORM,
    {},
    _EXPORT_SKELETON,
    (_export_factory, _export_recreate),
)
