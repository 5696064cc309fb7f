"""KernelPro: GPU kernels that are written, verified, measured and explained.

The package has two halves. The lab (`kernelpro.lab`) touches hardware and untrusted code and needs
only Python and torch; everything else runs on any machine and reaches the lab through a pool.
`kernelpro.runtime` is what candidates import.
"""

from typing import Any

__version__ = "0.1.0"
_HOMES = {
    "Candidate": "records",
    "Options": "records",
    "Verdict": "records",
    "FallbackError": "dropin.module",
    "FallbackWarning": "dropin.module",
    "OptimizedModule": "dropin.module",
    "OptimizationResult": "api",
    "build_guards": "dropin.native_guards",
    "export": "api",
    "judge": "api",
    "optimize": "api",
    "patch": "api",
    "profile": "api",
}
"""The public names and the modules that define them."""
__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    """Include the names that were not loaded yet, for completion and for Python's suggestions."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `import kernelpro` costs nothing in a candidate."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"kernelpro.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kernelpro' has no attribute {name!r}")
