"""Native code without kernelpro: its modules, where they are not installed, and libraries that are compiled late."""

_GUARD_CARRIED: dict[str, str] = {}
"""Sources of kernelpro's modules by name, each after those that it imports."""

# --- exported below ------------------------------------------------------------------------------------
from typing import Any  # noqa: E402


def _guard_carry() -> None:
    """Take the modules of kernelpro from this file where kernelpro is not installed."""
    import sys
    import types

    try:
        import kernelpro.runtime  # noqa: F401
    except ImportError:
        for name, text in _GUARD_CARRIED.items():
            module = sys.modules[name] = types.ModuleType(name)
            module.__path__ = []
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
            exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)


class _GuardLibrary:
    """A native library that is compiled when a model is built, so that importing this file needs no compiler."""

    def __init__(self, compiler: Any, arguments: Any, named: Any):
        self._guard_recipe = compiler, arguments, named
        self._guard_library: Any = None

    def _guard_build(self) -> Any:
        if self._guard_library is None:
            compiler, arguments, named = self._guard_recipe
            self._guard_library = compiler(*arguments, **named)
        return self._guard_library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._guard_build(), name)
        setattr(self, name, found)
        return found


def _guard_later() -> Any:
    """Put off what the candidate compiles while it is imported. Returns the libraries, and what ends this."""
    from kernelpro import runtime

    own = {name: getattr(runtime, name) for name in ("cpp", "cuda", "cute")}
    libraries: list[_GuardLibrary] = []

    def put_off(compiler: Any) -> Any:
        def later(*arguments: Any, **named: Any) -> _GuardLibrary:
            libraries.append(_GuardLibrary(compiler, arguments, named))
            return libraries[-1]

        return later

    vars(runtime).update({name: put_off(compiler) for name, compiler in own.items()})
    return libraries, lambda: vars(runtime).update(own)
