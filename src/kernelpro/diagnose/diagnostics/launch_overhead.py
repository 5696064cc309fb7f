"""Launch overhead: many short kernels, whose launches cost more than their execution."""

from __future__ import annotations

from kernelpro.diagnose.device_time import LAUNCH_US, MANY_LAUNCHES, SHORT_US, has_short_kernels, idle_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Evidence

MIN_IDLE = 0.2
"""Idle share of a call from which fewer launches are worth a rewrite."""


def _analyze(context: DiagnosticContext) -> Match | None:
    timeline = context.timeline
    idle, call, busy = idle_us(context), timeline.call_us, timeline.busy_us
    if not has_short_kernels(context) or idle < MIN_IDLE * call:
        return None
    mean = busy / timeline.launches
    return Match(
        evidence=(
            Evidence("kernel launches in a call", round(timeline.launches, 1), MANY_LAUNCHES),
            Evidence("mean kernel time", round(mean, 2), SHORT_US, "us"),
            percent("device idle share of a call", idle / call, MIN_IDLE),
        ),
        cause=f"{timeline.launches:.0f} kernels of {mean:.1f} us each: the device waits {idle:.0f} of "
        f"{call:.0f} us for the next launch",
        saved_share=1 - (busy + LAUNCH_US) / call,
        basis=f"one launch ({LAUNCH_US:.0f} us) and {busy:.0f} us of device work would remain of {call:.0f} "
        "us",
    )


DIAGNOSTIC = Diagnostic(
    name="launch_overhead",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger=f"{MANY_LAUNCHES} kernels or more of less than {SHORT_US:g} us on average, and the device idles "
    f"{MIN_IDLE:.0%} of a call or more",
    remedy="fusion, a persistent kernel, or a CUDA graph",
    gain_basis="busy time and one launch remain",
    advice=(
        "fuse the chain into one kernel, or into a few",
        "run dependent steps in one persistent kernel with a grid-wide barrier",
        "capture the sequence in a CUDA graph: about 1 us per kernel instead of 5 to 10",
    ),
    symptom_of=("host_sync",),
    claims=(
        "gaps",
        "host",
    ),
)
