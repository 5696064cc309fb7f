"""Host synchronization inside a call: the host waits for the device, then the device for the host."""

from __future__ import annotations

from kernelpro.diagnose.device_time import host_copies, idle_us
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_ROUND_TRIP_US = 8.0
"""Until the device works again after a synchronization: the host wakes up (3 to 5) and launches anew (3 to
5)."""


def _analyze(context: DiagnosticContext) -> Match | None:
    timeline = context.timeline
    by_name = {name: count for name, count in timeline.syncs.items() if count > 0}
    read_back = sum(copy.count for copy in timeline.copies if copy.kind == "DtoH")
    # Large copies to or from the host synchronize as well; needless_copies covers those.
    large_copies = sum(copy.count for copy in host_copies(context))
    syncs = max(sum(by_name.values()), read_back) - large_copies
    if syncs < 0.5 or timeline.call_us <= 0:
        return None
    lost = min(idle_us(context), max(timeline.gaps_us, syncs * _ROUND_TRIP_US))
    names = ", ".join(sorted(by_name)) or "copies to the host"
    evidence = [
        Evidence("synchronizations in a call", round(syncs, 1), 0),
        Evidence("device idle time", round(idle_us(context), 1), unit="us"),
    ]
    if read_back:
        evidence.append(Evidence("values read back by the host", round(read_back, 1), 0))
    return Match(
        evidence=tuple(evidence),
        cause=f"the host synchronizes {syncs:.0f} times in a call ({names}); each time the device idles "
        "until the next launch",
        saved_share=lost / timeline.call_us,
        basis=f"the device idles {lost:.0f} of {timeline.call_us:.0f} us around synchronizations (at least "
        f"{_ROUND_TRIP_US:.0f} us each)",
    )


DIAGNOSTIC = Diagnostic(
    name="host_sync",
    level="system",
    target="cuda",
    analyze=_analyze,
    trigger="a synchronizing API call, or a small copy to the host, inside a call",
    remedy="decisions on the device, no synchronization in forward",
    gain_basis="idle gaps of the device in a call with synchronizations, at least a round trip for each",
    advice=(
        "keep decisions on the device (torch.where, masks, or a kernel that reads the value) instead of "
        ".item(), .cpu(), print or if on a tensor",
        "remove torch.cuda.synchronize() from forward: work on one stream is already ordered",
        "where the host needs a value, read it back once at the end",
    ),
    claims=(
        "gaps",
        "host",
    ),
)
