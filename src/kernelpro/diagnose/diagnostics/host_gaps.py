"""Host gaps: the device idles while the host does its own work between launches (Python, allocation)."""

from __future__ import annotations

from kernelpro.diagnose.device_time import LAUNCH_US, has_short_kernels, untraced_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

MIN_IDLE = 0.1
"""Share of a call from which gaps matter."""
LEAD_US = 100.0
"""Host time that an ordinary forward pass needs at most before its first kernel, with tracing on."""
_ALLOCATING = (
    *("cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemAlloc"),
    *("cuModuleLoad", "cudaStreamCreate", "cudaEventCreate"),
)
_ADVICE = (
    "move host work out of forward: prepare indices, masks and constants in __init__, or compute them in a "
    "kernel",
    "launch kernels first and do host work while they run; capture the sequence in a CUDA graph",
)
_REUSE = (
    "allocate once and reuse (torch's caching allocator, buffers made in __init__) instead of in each call"
)


def _analyze(context: DiagnosticContext) -> Match | None:
    timeline = context.timeline
    around = timeline.call_us - timeline.busy_us - timeline.gaps_us
    between = max(0.0, timeline.gaps_us - LAUNCH_US * timeline.launches)
    call = untraced_us(context.profile, timeline)
    lost = min(between + max(0.0, around - LEAD_US), max(0.0, call - timeline.busy_us))
    if not timeline.syncs and call - timeline.busy_us < timeline.busy_us:
        lost = min(lost, between)  # host work of the next call overlaps with the kernels of this one
    if has_short_kernels(context) or lost < MIN_IDLE * call:
        return None
    slow = {
        name: api["us"]
        for name, api in timeline.apis.items()
        if name.startswith(_ALLOCATING) and api.get("us", 0.0) > 0.1 * lost
    }
    launching = round(LAUNCH_US * timeline.launches, 1)
    reason = f"mostly in {', '.join(slow)}" if slow else "beyond launch overhead: Python or other host code"
    return Match(
        evidence=(
            Evidence("device idle between kernels", round(timeline.gaps_us, 1), launching, "us"),
            Evidence("host time before the first and after the last kernel", round(around, 1), LEAD_US, "us"),
            *(Evidence(f"time in {name}", round(us, 1), unit="us") for name, us in slow.items()),
        ),
        cause=f"the device waits {lost:.0f} of {call:.0f} us for the host, {reason}",
        saved_share=lost / call,
        basis=f"device idle time in excess of {LAUNCH_US:.0f} us per launch and {LEAD_US:.0f} us around the "
        "call",
        advice=(_REUSE, *_ADVICE) if slow else _ADVICE,
    )


DIAGNOSTIC = Diagnostic(
    name="host_gaps",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger=f"the device idles {MIN_IDLE:.0%} of a call or more, beyond {LAUNCH_US:g} us per launch and "
    f"{LEAD_US:g} us around the call",
    remedy="host work out of forward, reused buffers, CUDA graphs",
    gain_basis="idle time beyond what launches explain",
    symptom_of=("host_sync",),
    claims=(
        "gaps",
        "host",
    ),
)
