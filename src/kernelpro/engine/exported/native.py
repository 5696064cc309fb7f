"""Native code without kernelpro: copies of its modules, and libraries that are compiled on first use."""

_EXPORT_MODULES: dict[str, str] = {}
"""Sources of kernelpro's modules by name, each after the modules that it imports."""

# --- exported below ------------------------------------------------------------------------------------
from typing import Any  # noqa: E402


def _export_provide_modules() -> None:
    """Load the modules of kernelpro from this file if kernelpro is not installed."""
    import sys
    import types

    try:
        import kernelpro.runtime  # noqa: F401
    except ImportError:
        for name, text in _EXPORT_MODULES.items():
            module = sys.modules[name] = types.ModuleType(name)
            module.__path__ = []
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
            exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)


class _ExportLibrary:
    """A native library that is compiled when a model is built: importing this file needs no compiler."""

    def __init__(self, compiler: Any, arguments: Any, named: Any):
        self._export_recipe = compiler, arguments, named
        self._export_library: Any = None

    def _export_build(self) -> Any:
        if self._export_library is None:
            compiler, arguments, named = self._export_recipe
            self._export_library = compiler(*arguments, **named)
        return self._export_library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._export_build(), name)
        setattr(self, name, function)
        return function


def _export_defer_builds() -> Any:
    """Defer what the candidate compiles on import. Returns the libraries, and a function that ends the
    deferral."""
    from kernelpro import runtime

    compilers = {name: getattr(runtime, name) for name in ("cpp", "cuda", "cute")}
    libraries: list[_ExportLibrary] = []

    def deferred(compiler: Any) -> Any:
        def record(*arguments: Any, **named: Any) -> _ExportLibrary:
            libraries.append(_ExportLibrary(compiler, arguments, named))
            return libraries[-1]

        return record

    vars(runtime).update({name: deferred(compiler) for name, compiler in compilers.items()})
    return libraries, lambda: vars(runtime).update(compilers)
