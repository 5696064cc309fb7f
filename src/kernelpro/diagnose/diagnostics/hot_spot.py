"""Hot spot: one of several kernels takes most of the time."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import ANY, HIGH, Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import Evidence

MIN_SHARE = 0.5
FAR = 1.3
"""Call time over the floor: below, no kernel of the call is worth a rewrite."""
_MIN_REACH = 0.05
"""Minimum distance from the kernel's time to the floor, as a share of the call."""
_MAX_SAVED = 1 - 1 / HIGH - 0.01
"""It names a place, not a defect: it never has high severity, and ranks after severe defects."""


def _analyze(context: DiagnosticContext) -> Match | None:
    kernels = context.profile.kernels
    if len(kernels) < 2:
        return None
    top = max(kernels, key=lambda kernel: kernel.share)
    if top.share < MIN_SHARE or context.headroom < FAR or top.microseconds <= 0:
        return None
    name = display_name(top, kernels)
    call = max(context.timeline.call_us, top.microseconds)
    reach = (top.microseconds - 1e3 * context.profile.floor_ms) / call
    if reach < _MIN_REACH:
        return None
    return Match(
        evidence=(
            percent("share of the device time", top.share, MIN_SHARE),
            Evidence("kernels in a call", len(kernels)),
            Evidence("call time over the floor", round(context.headroom, 2), FAR),
        ),
        cause=f"1 of {len(kernels)} kernels takes {top.share:.0%} of the device time; removing all others "
        f"would gain at most {1 / top.share:.2f}x",
        saved_share=min(_MAX_SAVED, reach / 2),
        basis="half of the distance between this kernel and the floor; it takes "
        f"{top.microseconds / call:.0%} of a call",
        advice=(
            f"optimize {name} first, by its own findings"
            if top.authored
            else f"replace {name} by your own kernel: a library kernel cannot be edited",
            "fuse the short kernels into it where they touch the same data",
        ),
        kernel=name,
    )


DIAGNOSTIC = Diagnostic(
    name="hot_spot",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger=f"one of several kernels takes {MIN_SHARE:.0%} of the device time or more, in a call {FAR:g}x "
    "its floor or slower",
    remedy="optimize that kernel first",
    gain_basis="half of the distance to the floor, by Amdahl's law; never high severity, since it names no "
    "defect",
    symptom_of=(ANY,),
    claims=(),
)
