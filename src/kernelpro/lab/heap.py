"""The heap of this process.

Sandboxes and workers keep freed memory (sandbox/launcher.py), so that repeated calls do not wait for page
faults. Where memory has to be free for others, or fresh, they return it explicitly.
"""

from __future__ import annotations

import ctypes

_LIBC = ctypes.CDLL(None)


def trim() -> None:
    """Return free memory to the system; does nothing with a C library other than glibc."""
    malloc_trim = getattr(_LIBC, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
