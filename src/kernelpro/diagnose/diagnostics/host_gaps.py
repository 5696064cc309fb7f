"""The device waits for the host's own work between kernels: Python, allocation, planning."""

from __future__ import annotations

from kernelpro.diagnose.device_time import LAUNCH, short_kernels, untraced_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_IDLE = 0.1
"""Share of a call from which on gaps matter."""
_LEAD = 100.0
"""Microseconds before the first kernel that an ordinary forward needs at most, with tracing on."""
_ALLOCATING = (
    "cudaMalloc",
    "cudaFree",
    "cudaHostAlloc",
    "cuMemAlloc",
    "cuModuleLoad",
    "cudaStreamCreate",
    "cudaEventCreate",
)


def look(scene: DiagnosticContext) -> Match | None:
    line = scene.timeline
    between = max(0.0, line.gaps_us - LAUNCH * line.launches)
    before = max(0.0, line.call_us - line.busy_us - line.gaps_us - _LEAD)
    call = untraced_us(scene.profile, line)
    lost = min(between + before, max(0.0, call - line.busy_us))
    if short_kernels(scene) or lost < _IDLE * call:
        return None
    slow = {
        name: api["us"]
        for name, api in line.apis.items()
        if name.startswith(_ALLOCATING) and api.get("us", 0.0) > 0.1 * lost
    }
    evidence = [
        Evidence(
            "idle time of the device between kernels",
            round(line.gaps_us, 1),
            round(LAUNCH * line.launches, 1),
            "us",
        ),
        Evidence(
            "host time before the first and after the last kernel",
            round(line.call_us - line.busy_us - line.gaps_us, 1),
            _LEAD,
            "us",
        ),
    ]
    evidence += [Evidence(f"time in {name}", round(us, 1), unit="us") for name, us in slow.items()]
    what = (
        f"most of it in {', '.join(slow)}"
        if slow
        else "beyond what launching needs: Python or other host code runs there"
    )
    advice = [
        "move host work out of forward: prepare indices, masks, plans and constants in __init__, or compute them in a kernel",
        "start kernels first and do host work while they run; capture the sequence in a CUDA graph",
    ]
    if slow:
        advice.insert(
            0,
            "allocate once and reuse (torch's caching allocator, buffers made in __init__) instead of allocating in each call",
        )
    return Match(
        tuple(evidence),
        f"the device waits {lost:.0f} of {call:.0f} us for the host, {what}",
        tuple(advice),
        lost / call,
        f"idle time of the device beyond {LAUNCH:.0f} us a launch and {_LEAD:.0f} us around the call",
    )


DIAGNOSTIC = Diagnostic(
    name="host_gaps",
    level="system",
    target="cuda",
    analyze=look,
    trigger=(
        f"the device idles {_IDLE:.0%} of a call or more, beyond {LAUNCH:g} us for each launch and {_LEAD:g} us around the call"
    ),
    remedy="host work out of forward, buffers kept, CUDA graphs",
    gain_basis="idle time beyond what launches explain",
    symptom_of=("host_sync", "launch_overhead", "needless_copies"),
)
