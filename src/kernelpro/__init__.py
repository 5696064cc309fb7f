"""KernelPro: GPU kernels that are written, verified, measured and explained.

The package has two halves. The lab (`kernelpro.lab`) touches hardware and untrusted code and needs
only Python and torch; everything else runs on any machine and reaches the lab through a pool.
`kernelpro.runtime` is what candidates import.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Candidate", "OptimizationResult", "Options", "Verdict", "__version__", "judge", "optimize"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `import kernelpro` costs nothing in a candidate."""
    if name in ("Candidate", "Options", "Verdict"):
        from kernelpro import records

        return getattr(records, name)
    if name in ("OptimizationResult", "judge", "optimize"):
        from kernelpro import api

        return getattr(api, name)
    raise AttributeError(f"module 'kernelpro' has no attribute {name!r}")
