"""Data that is moved without being changed: layout changes, clones, trips to the host."""

from __future__ import annotations

from kernelpro.diagnose.device_time import COPYING, host_copies
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_NOTICEABLE = 0.05


def look(scene: DiagnosticContext) -> Match | None:
    line = scene.timeline
    kernels = [
        kernel for kernel in scene.profile.kernels if not kernel.authored and COPYING.search(kernel.name)
    ]
    inside = [copy for copy in line.copies if copy.kind == "DtoD" and copy.count > 0]
    host = host_copies(scene)
    copying = sum(kernel.microseconds for kernel in kernels) + sum(
        copy.microseconds for copy in inside + host
    )
    waiting = line.gaps_us if host else 0.0  # the device rests while the host has the data
    lost = min(line.call_us, copying + waiting)
    if lost < _NOTICEABLE * line.call_us:
        return None
    evidence = [
        Evidence("device time spent copying", round(copying), unit="us"),
        Evidence("share of a call", round(100 * lost / line.call_us), 5, "%"),
    ]
    evidence += [Evidence(f"{copy.kind} bytes in a call", copy.nbytes, 0, "bytes") for copy in inside + host]
    evidence += [Evidence(f"launches of {_short(kernel.name)}", kernel.launches, 0) for kernel in kernels]
    advice = [
        (
            "let the kernel read the layout that is there: pass strides, swap "
            "the roles of operands, instead of .contiguous(), permute or clone"
        ),
        "write results straight into the final tensor at its offset, instead of cat, stack or a copy at the end",
    ]
    if host:
        advice.insert(
            0,
            "keep data on the device: no .cpu(), .numpy() or .to(device) in forward; constants go over once, in __init__",
        )
        cause = (
            f"data travels between host and device in each call: {copying:.0f} "
            f"us of copies, {waiting:.0f} us in which the device waits"
        )
    else:
        cause = f"{copying:.0f} of {line.call_us:.0f} us go into copies that change no value"
    return Match(
        tuple(evidence),
        cause,
        tuple(advice),
        lost / line.call_us,
        f"copies take {lost:.0f} of {line.call_us:.0f} us, with the waits they cause",
    )


def _short(name: str) -> str:
    """The telling part of a library kernel's name."""
    match = COPYING.search(name)
    return match[0] if match else name


DIAGNOSTIC = Diagnostic(
    name="needless_copies",
    level="system",
    target="cuda",
    analyze=look,
    trigger=(
        "copies within the device, of data to or from the host, or library "
        f"kernels that only copy, take {_NOTICEABLE:.0%} of a call or more"
    ),
    remedy="read the layout that is there, write in place, stay on the device",
    gain_basis="the time of the copies, and the device's waits where the host takes part",
)
