"""Fresh memory at every call: the kernel hands out, clears and maps each page when it is first touched."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

_LEAST_BYTES = 1 << 20
"""A call that touches less fresh memory than this is not slowed by it: a fault takes about half a microsecond."""
_LEAST = 0.08
"""Of CPU time spent in the kernel."""


def look(scene: DiagnosticContext) -> Match | None:
    seen = scene.cpu["dynamic"]
    if "minor_faults" not in seen:
        raise MissingData("calls that were observed")
    fresh = seen["minor_faults"] * scene.cpu["page_bytes"]
    share = seen["system_ms"] / seen["cpu_ms"] if seen["cpu_ms"] > 0 else 0.0
    if fresh < _LEAST_BYTES or share < _LEAST:
        return None
    return Match(
        evidence=(
            Evidence("page faults", seen["minor_faults"], _LEAST_BYTES / scene.cpu["page_bytes"], "a call"),
            Evidence("fresh memory touched", fresh / 2**20, 1, "MiB a call"),
            Evidence("CPU time in the kernel", share, _LEAST, "of 1"),
        ),
        cause=f"each call touches {fresh / 2**20:.0f} MiB of memory fresh from the system; to clear and map it takes {share:.0%} "
        "of the CPU time",
        advice=(
            "no large temporaries: keep a row or a block in a buffer of each thread",
            "allocate scratch once (a buffer of the module, a static vector) and use it again",
            "blocks above 32 MiB always come fresh from the system with glibc: smaller ones are reused",
        ),
        saved_share=share,
        basis=f"{seen['system_ms']:.1f} of {seen['cpu_ms']:.1f} ms of CPU time a call are the kernel's",
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_page_faults",
    level="system",
    target="cpu",
    analyze=look,
    trigger="page faults for at least 1 MiB a call, and at least 8 % of the CPU time in the kernel",
    remedy="reuse memory between calls, or need none",
    gain_basis="the kernel's share of the CPU time goes",
)
