"""Needless copies: data is moved without being changed (layout changes, clones, transfers to the host)."""

from __future__ import annotations

from kernelpro.diagnose.device_time import COPYING, host_copies, untraced_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Evidence

MIN_SHARE = 0.05
_ADVICE = (
    "let the kernel read the existing layout: pass strides or swap operands instead of .contiguous(), "
    "permute or clone",
    "write results directly into the final tensor at their offset instead of cat, stack or a final copy",
)
_STAY = (
    "keep data on the device: no .cpu(), .numpy() or .to(device) in forward; transfer constants once, in "
    "__init__"
)


def _analyze(context: DiagnosticContext) -> Match | None:
    timeline = context.timeline
    call = max(timeline.busy_us, untraced_us(context.profile, timeline))
    kernels = [k for k in context.profile.kernels if not k.authored and COPYING.search(k.name)]
    device = [copy for copy in timeline.copies if copy.kind == "DtoD" and copy.count > 0]
    host = host_copies(context)
    copying = sum(k.microseconds for k in kernels) + sum(c.microseconds for c in (*device, *host))
    waiting = (
        min(timeline.gaps_us, call - timeline.busy_us) if host else 0.0
    )  # the device idles while the host has the data
    lost = min(call, copying + waiting)
    if lost < MIN_SHARE * call:
        return None
    cause = f"{copying:.0f} of {call:.0f} us go into copies that change no value"
    if host:
        cause = (
            f"data is transferred between host and device in each call: {copying:.0f} us of copies, and the "
            f"device waits {waiting:.0f} us"
        )
    return Match(
        evidence=(
            Evidence("device time of copies", round(copying), unit="us"),
            percent("share of a call", lost / call, MIN_SHARE),
            *(Evidence(f"{c.kind} bytes in a call", c.nbytes, 0, "bytes") for c in (*device, *host)),
            *(Evidence(f"launches of {_short_name(k.name)}", k.launches, 0) for k in kernels),
        ),
        cause=cause,
        saved_share=lost / call,
        basis=f"copies take {lost:.0f} of {call:.0f} us, with the waits they cause",
        advice=(_STAY, *_ADVICE) if host else _ADVICE,
        claims=None if kernels else ("copies", "gaps", "host"),
        claims_of=tuple(kernels),
    )


def _short_name(name: str) -> str:
    """The part of a library kernel's name that shows that it copies."""
    match = COPYING.search(name)
    return match[0] if match else name


DIAGNOSTIC = Diagnostic(
    name="needless_copies",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger="copies within the device, of data to or from the host, or library kernels that only copy, take "
    f"{MIN_SHARE:.0%} of a call or more",
    remedy="read the existing layout, write in place, stay on the device",
    gain_basis="the time of the copies and, if the host takes part, of the device's waits",
)
