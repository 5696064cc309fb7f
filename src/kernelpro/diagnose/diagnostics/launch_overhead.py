"""Many short kernels: starting them costs more than running them."""

from __future__ import annotations

from kernelpro.diagnose.device_time import LAUNCH, MANY, SHORT, idle_us, short_kernels
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_IDLE = 0.2
"""Share of a call in which the device waits from which on launches are worth a rewrite."""


def look(scene: DiagnosticContext) -> Match | None:
    line = scene.timeline
    idle = idle_us(scene)
    if not short_kernels(scene) or idle < _IDLE * line.call_us:
        return None
    left = line.busy_us + LAUNCH
    return Match(
        (
            Evidence("kernels started in a call", round(line.launches, 1), MANY),
            Evidence("average time of a kernel", round(line.busy_us / line.launches, 2), SHORT, "us"),
            Evidence(
                "share of a call in which the device waits",
                round(100 * idle / line.call_us),
                100 * _IDLE,
                "%",
            ),
        ),
        (
            f"{line.launches:.0f} kernels of {line.busy_us / line.launches:.1f} us "
            f"each: the device waits {idle:.0f} of {line.call_us:.0f} us for the next one"
        ),
        (
            "fuse the chain into one kernel, or into a few",
            "where steps depend on each other, run them in one persistent kernel with a barrier across the grid",
            "capture the sequence in a CUDA graph and replay it: about 1 us a kernel instead of 5 to 10",
        ),
        1 - left / line.call_us,
        (
            f"one start ({LAUNCH:.0f} us) and the {line.busy_us:.0f} us in "
            f"which the device works would remain of {line.call_us:.0f} us"
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="launch_overhead",
    level="system",
    target="cuda",
    analyze=look,
    trigger=f"{MANY} kernels or more of less than {SHORT:g} us on average, and the device waits {_IDLE:.0%} of a call or more",
    remedy="fusion, a persistent kernel, or a CUDA graph",
    gain_basis="busy time and one launch remain",
    symptom_of=("host_sync",),
)
