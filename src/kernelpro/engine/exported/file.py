"""The end of a standalone file: loads the drop-in package from its text."""

from __future__ import annotations

from typing import Any

_EXPORT_DROPIN: dict[str, str] = {}
"""Sources of kernelpro.dropin by module."""
_EXPORT_FILES: dict[str, str] = {}
_EXPORT_SPECS: list[dict[str, Any]] = []
_EXPORT_NUMBERS: list[int] = []
_EXPORT_OTHER_KERNELS: dict[str, str] = {}
_EXPORT_REFERENCE = _EXPORT_ENTRY = _EXPORT_FORM = _EXPORT_SKELETON = ""
_export_libraries: Any = ()


class ModelNew: ...


# --- exported below ------------------------------------------------------------------------------------
import functools  # noqa: E402
from typing import Any  # noqa: E402, F811


def _export_load_dropin() -> Any:
    """Load the package `dropin` under a name of this file, and return it."""
    import linecache
    import sys
    import types

    package = f"{__name__}_dropin"
    order = (
        "__init__",
        "spec",
        "reads",
        "native_guards",
        "guards",
        "kernel",
        "operator",
        "calls",
        "module",
        "exported",
        "self_test",
    )
    for stem in order:
        name = package if stem == "__init__" else f"{package}.{stem}"
        text = _EXPORT_DROPIN[stem].replace("kernelpro.dropin", package)
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = file = f"<{name}>"
        module.__path__ = []
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
        if stem != "__init__":
            setattr(sys.modules[package], stem, module)
    return sys.modules[package]


def _export_kernel(number: int) -> Any:
    """The class ModelNew of a kernel; the first is the one in this file."""
    if number:
        text = list(_EXPORT_OTHER_KERNELS.values())[number - 1]
        return _export_dropin.kernel.load_source(text, f"{__name__}_kernel_{number + 1}").ModelNew
    for library in _export_libraries:
        library._export_build()
    return ModelNew


def _export_factory(number: int) -> Any:
    return _export.factories[number]


def _export_recreate(*arguments: Any) -> Any:
    return _export_dropin.module.recreate(*arguments)


_export_dropin = _export_load_dropin()
_export = _export_dropin.exported.ExportedKernel(
    __name__,
    _EXPORT_SPECS,
    [functools.partial(_export_kernel, number) for number in _EXPORT_NUMBERS],
    _EXPORT_REFERENCE,
    _EXPORT_ENTRY,
    _EXPORT_FORM,
    _EXPORT_FILES,
    _EXPORT_SKELETON,
    (_export_factory, _export_recreate),
)
