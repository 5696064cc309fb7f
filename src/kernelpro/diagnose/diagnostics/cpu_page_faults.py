"""Page faults: each call touches fresh memory, which the operating system clears and maps page by page."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import system_share
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.records import Evidence

_MIN_BYTES = 1 << 20
"""Fresh memory per call: less does not matter, since a fault takes about half a microsecond."""
MIN_SHARE = 0.08
"""Share of the CPU time in the operating system."""


def _analyze(context: DiagnosticContext) -> Match | None:
    run, page = context.cpu.dynamic, context.cpu.page_bytes
    if run.minor_faults is None or run.system_ms is None or run.cpu_ms is None:
        raise MissingData("observed calls")
    fresh = run.minor_faults * page
    share = system_share(context.cpu)
    if fresh < _MIN_BYTES or share < MIN_SHARE:
        return None
    return Match(
        evidence=(
            Evidence("page faults per call", run.minor_faults, _MIN_BYTES / page),
            Evidence("fresh memory touched per call", fresh / 2**20, 1, "MiB"),
            percent("CPU time in the operating system", share, MIN_SHARE),
        ),
        cause=(
            f"each call touches {fresh / 2**20:.0f} MiB of fresh memory; clearing and mapping it takes "
            f"{share:.0%} of the CPU time"
        ),
        saved_share=share,
        basis=(
            f"{share * run.cpu_ms:.1f} of {run.cpu_ms:.1f} ms of CPU time per call are spent on page faults, "
            "in the operating system"
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_page_faults",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger=(
        f"page faults for at least 1 MiB per call, and at least {MIN_SHARE:.0%} of the CPU time in the "
        "operating system"
    ),
    remedy="reuse memory between calls, or avoid temporaries",
    gain_basis="the operating system's share of the CPU time, at most 3 us per page",
    advice=(
        "avoid large temporaries: keep a row or a block in a buffer per thread",
        "allocate scratch memory once (a buffer of the module, a static vector) and reuse it",
        "stay below 32 MiB per block: glibc returns larger blocks to the system and reuses smaller ones",
    ),
    claims=("operating_system",),
)
