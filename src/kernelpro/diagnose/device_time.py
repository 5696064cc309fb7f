"""How the time of a call divides: what the device does, what it waits for, and which of its work is copying."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import DiagnosticContext
from kernelpro.records import Copy, Profile, Timeline

SHORT = 10.0
"""Microseconds below which a kernel is over before the host has started the next: a launch from Python costs 5 to 10."""
LAUNCH = 10.0
"""Microseconds of host time that a launch from Python explains (a launch from C++ takes 2 to 5); more is other work."""
MANY = 4
"""Launches of a call from which on their cost adds up."""
COPYING = re.compile(
    r"direct_copy|copy_kernel|copy_device_to_device|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|transpose|permute|contiguous|tensorTransform",
    re.IGNORECASE,
)
"""Library kernels that move data and compute nothing."""
_HOST = ("HtoD", "DtoH")
_SMALL = 4096
"""Bytes up to which a copy to or from the host carries a scalar or an argument, not data."""


def idle_us(scene: DiagnosticContext) -> float:
    """Time of a call in which the device does nothing."""
    return max(0.0, scene.timeline.call_us - scene.timeline.busy_us)


def untraced_us(profile: Profile, line: Timeline) -> float:
    """A call without what its tracer costs: CUPTI adds 20 to 60 us to it on an H200, and nsys makes every launch twice as long."""
    return min(line.call_us, 1e3 * profile.time_ms)


def short_kernels(scene: DiagnosticContext) -> bool:
    """Whether a call consists of many short kernels that the host starts at its usual pace."""
    line = scene.timeline
    if line.launches < MANY:
        return False
    idle = untraced_us(scene.profile, line) - line.busy_us
    return line.busy_us / line.launches < SHORT and idle / line.launches < 3 * LAUNCH


def host_copies(scene: DiagnosticContext) -> list[Copy]:
    """Copies of data (not of scalars) to or from the host."""
    return [
        copy
        for copy in scene.timeline.copies
        if copy.kind in _HOST and copy.count > 0 and copy.nbytes / copy.count > _SMALL
    ]


def host_round_trips(scene: DiagnosticContext) -> float:
    """How many of them there are in a call."""
    return sum(copy.count for copy in host_copies(scene))
