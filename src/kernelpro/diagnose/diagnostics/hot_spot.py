"""One of several kernels takes most of the time: where to look first, and what that can bring."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import ANY, HIGH, Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.kernel_names import display_name
from kernelpro.records import Evidence

_MOST = 0.5
_FAR = 1.3
"""How far above the floor a call must be: nearer, no kernel of it is worth a rewrite."""
_WORTH = 0.05
"""Share of a call between the kernel and the floor below which it is no place to look."""
_CEILING = 1 - 1 / HIGH - 0.01
"""It tells where, not what: so it never counts as severe, and any tool that names a severe defect ranks before it."""


def look(scene: DiagnosticContext) -> Match | None:
    kernels = scene.profile.kernels
    if len(kernels) < 2:
        return None
    top = max(kernels, key=lambda kernel: kernel.share)
    if top.share < _MOST or scene.headroom < _FAR or top.microseconds <= 0:
        return None
    name = display_name(top, kernels)
    call = max(scene.timeline.call_us, top.microseconds)
    weight = top.microseconds / call
    reach = (top.microseconds - 1e3 * scene.profile.floor_ms) / call
    if reach < _WORTH:
        return None
    return Match(
        (
            Evidence("share of the device time", round(100 * top.share), 100 * _MOST, "%"),
            Evidence("kernels in a call", len(kernels)),
            Evidence("times the floor", round(scene.headroom, 2), _FAR),
        ),
        (
            f"this one of {len(kernels)} kernels takes {top.share:.0%} of the device time; all others together can bring at most "
            f"{1 / top.share:.2f}x"
        ),
        (
            f"work on {name} first: its own findings say what to change"
            if top.authored
            else f"replace {name} by a kernel of your own: a library's kernel cannot be changed",
            "merge what the short kernels do into it where they touch the same data",
        ),
        min(_CEILING, reach / 2),
        f"half of what lies between this kernel and the floor, {weight:.0%} of a call being spent in it",
        kernel=name,
    )


DIAGNOSTIC = Diagnostic(
    name="hot_spot",
    level="system",
    target="cuda",
    analyze=look,
    trigger=f"one of several kernels takes {_MOST:.0%} of the device time or more, in a call {_FAR:g} times its floor or slower",
    remedy="work on that kernel first",
    gain_basis="half of the way to the floor, by Amdahl's law; never counted as severe, for it names no defect",
    symptom_of=(ANY, "launch_overhead", "host_sync", "host_gaps", "unfused_chain", "needless_copies"),
)
