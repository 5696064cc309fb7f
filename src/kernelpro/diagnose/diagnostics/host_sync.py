"""The host waits for the device inside a call, so the device then waits for the host."""

from __future__ import annotations

from kernelpro.diagnose.device_time import host_round_trips, idle_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_ROUND_TRIP = 8.0
"""Microseconds until the device works again after a synchronisation: the host wakes up (3 to 5) and launches anew (3 to 5)."""


def look(scene: DiagnosticContext) -> Match | None:
    line = scene.timeline
    by_name = {name: count for name, count in line.syncs.items() if count > 0}
    read_back = sum(copy.count for copy in line.copies if copy.kind == "DtoH")
    # A large copy to or from the host waits as well: needless_copies speaks of those.
    waits = max(sum(by_name.values()), read_back) - host_round_trips(scene)
    if waits < 0.5 or line.call_us <= 0:
        return None
    lost = min(idle_us(scene), max(line.gaps_us, waits * _ROUND_TRIP))
    names = ", ".join(sorted(by_name)) or "copies to the host"
    evidence = [
        Evidence("synchronisations in a call", round(waits, 1), 0),
        Evidence("idle time of the device", round(idle_us(scene), 1), unit="us"),
    ]
    if read_back:
        evidence.append(Evidence("values read back by the host", round(read_back, 1), 0))
    return Match(
        tuple(evidence),
        f"the host waits for the device {waits:.0f} times in a call ({names}); each time the device runs dry until the next launch",
        (
            (
                "keep decisions on the device: torch.where, masks, or a kernel that reads "
                "the value itself, instead of .item(), .cpu(), print or if on a tensor"
            ),
            "drop torch.cuda.synchronize() from forward: work on one stream is in order already",
            "where the host must know a value, read it back once at the end",
        ),
        lost / line.call_us,
        f"the device idles {lost:.0f} of {line.call_us:.0f} us around synchronisations (at least {_ROUND_TRIP:.0f} us each)",
    )


DIAGNOSTIC = Diagnostic(
    name="host_sync",
    level="system",
    target="cuda",
    analyze=look,
    trigger="a synchronising API call, or a small copy to the host, inside a call",
    remedy="decisions on the device, no synchronisation in forward",
    gain_basis="idle gaps of the device in a call with synchronisations, at least a round trip for each",
)
