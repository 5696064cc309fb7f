"""Ends the idle OpenMP threads of this process.

After parallel work, the threads of an OpenMP runtime busy-wait for more: 3 ms with torch's libgomp on a Xeon.
On a CPU the judge writes inputs and flushes the cache on all cores just before a timed call. Its idle threads
would take a core away from that call: on two cores, calls of 2 ms took between 1.2 and 2.4 times as long, and
the judge found identical code up to 1.7 times faster.
"""

from __future__ import annotations

import ctypes

_PAUSE_SOFT = 1
_LIBRARIES = ctypes.CDLL(None)


def end_idle_threads() -> None:
    """End the threads; the next parallel work starts them again. Does nothing if the runtime is older than
    OpenMP 5.0."""
    pause = getattr(_LIBRARIES, "omp_pause_resource_all", None)
    if pause is not None:
        pause(_PAUSE_SOFT)
