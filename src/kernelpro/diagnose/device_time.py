"""How the time of a call divides: device work, idle gaps, and copies."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.records import Copy, Profile, Timeline

SHORT_US = 10.0
"""A kernel below this ends before the host has launched the next: a launch from Python costs 5 to 10 us."""
LAUNCH_US = 10.0
"""Host time that a launch from Python explains (a launch from C++ takes 2 to 5 us); more is other work."""
MANY_LAUNCHES = 4
"""Launches in a call from which their cost adds up."""
COPYING = re.compile(
    r"direct_copy|copy_kernel|copy_device_to_device|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|transpose|permute"
    r"|contiguous|tensorTransform",
    re.IGNORECASE,
)
"""Library kernels that move data and compute nothing."""
_SMALL_COPY = 4096
"""Bytes up to which a copy to or from the host carries a scalar or an argument, not data."""


def idle_us(context: DiagnosticContext) -> float:
    """Time of a call in which the device idles."""
    return max(0.0, context.timeline.call_us - context.timeline.busy_us)


def untraced_us(profile: Profile, timeline: Timeline) -> float:
    """Time of a call without tracing: CUPTI adds 20 to 60 us on an H200, nsys doubles every launch."""
    return min(timeline.call_us, 1e3 * profile.time_ms)


def has_short_kernels(context: DiagnosticContext) -> bool:
    """Whether a call consists of many short kernels that the host launches at its usual pace."""
    timeline = context.timeline
    if timeline.launches < MANY_LAUNCHES:
        return False
    idle = untraced_us(context.profile, timeline) - timeline.busy_us
    return timeline.busy_us / timeline.launches < SHORT_US and idle / timeline.launches < 3 * LAUNCH_US


def host_copies(context: DiagnosticContext) -> list[Copy]:
    """Copies of data (not of scalars) to or from the host."""
    return [
        copy
        for copy in context.timeline.copies
        if copy.kind in ("HtoD", "DtoH") and copy.count > 0 and copy.nbytes / copy.count > _SMALL_COPY
    ]
