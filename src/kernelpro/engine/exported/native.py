"""Native code without kernelpro: copies of its modules, and libraries that are compiled on first use."""

_GUARD_MODULES: dict[str, str] = {}
"""Sources of kernelpro's modules by name, each after the modules that it imports."""

# --- exported below ------------------------------------------------------------------------------------
from typing import Any  # noqa: E402


def _guard_provide_modules() -> None:
    """Load the modules of kernelpro from this file if kernelpro is not installed."""
    import sys
    import types

    try:
        import kernelpro.runtime  # noqa: F401
    except ImportError:
        for name, text in _GUARD_MODULES.items():
            module = sys.modules[name] = types.ModuleType(name)
            module.__path__ = []
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
            exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)


class _GuardLibrary:
    """A native library that is compiled when a model is built: importing this file needs no compiler."""

    def __init__(self, compiler: Any, arguments: Any, named: Any):
        self._guard_recipe = compiler, arguments, named
        self._guard_library: Any = None

    def _guard_build(self) -> Any:
        if self._guard_library is None:
            compiler, arguments, named = self._guard_recipe
            self._guard_library = compiler(*arguments, **named)
        return self._guard_library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._guard_build(), name)
        setattr(self, name, function)
        return function


def _guard_defer_builds() -> Any:
    """Defer what the candidate compiles on import. Returns the libraries, and a function that ends the
    deferral."""
    from kernelpro import runtime

    compilers = {name: getattr(runtime, name) for name in ("cpp", "cuda", "cute")}
    libraries: list[_GuardLibrary] = []

    def deferred(compiler: Any) -> Any:
        def record(*arguments: Any, **named: Any) -> _GuardLibrary:
            libraries.append(_GuardLibrary(compiler, arguments, named))
            return libraries[-1]

        return record

    vars(runtime).update({name: deferred(compiler) for name, compiler in compilers.items()})
    return libraries, lambda: vars(runtime).update(compilers)
