"""Partly used sectors: small strides, arrays of structures, misaligned rows."""

from __future__ import annotations

from kernelpro.diagnose.account import TRAFFIC_PARTS
from kernelpro.diagnose.counters import KERNEL_BOUNDS, MEMORY_THROUGHPUT, SECTOR, stall_metrics
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import SUSPICIOUS, suspect_sector_waste
from kernelpro.diagnose.traffic import ACCESS_METRICS, FEW_BYTES, SCATTERED, STRIDED, wasted_sectors
from kernelpro.records import Evidence

WASTE = 0.2
"""Share of wasted sectors. Misaligned rows add one sector to 16 (6 %) for 16-byte accesses, one to 4 (20 %)
for 4-byte accesses."""
_STALLS = ("long_scoreboard", "lg_throttle")


def _analyze(context: DiagnosticContext) -> Match | None:
    if suspicion := suspect_sector_waste(
        context, SUSPICIOUS, STRIDED, "its loads may use sectors only in part"
    ):
        return suspicion
    wasted = wasted_sectors(
        context, lambda a: a.excess > WASTE and a.per_request < SCATTERED and a.used >= FEW_BYTES
    )
    if wasted is None:
        return None
    worst, weight = wasted.worst, context.memory_share
    used, least = round(worst.used, 1), (1 - WASTE) * SECTOR
    return Match(
        evidence=(
            Evidence(f"bytes used per {SECTOR}-byte sector ({worst.kind})", used, least, "B"),
            Evidence(f"sectors per request ({worst.kind})", round(worst.per_request, 1), None),
            Evidence("memory throughput", round(context.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        cause=f"the {wasted.kinds} use {worst.used:.0f} of the {SECTOR} bytes of each sector: a stride "
        f"between threads, fields of a structure, or misaligned rows; {wasted.share:.0%} of the sectors are "
        "wasted",
        saved_share=wasted.share * weight,
        basis=f"{wasted.share:.0%} of the sectors are unnecessary, and memory takes {weight:.0%} of the time",
        where=context.hottest_line(*_STALLS),
    )


DIAGNOSTIC = Diagnostic(
    name="sector_waste",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"global loads or stores that would need {WASTE:.0%} fewer sectors if coalesced, but are not "
    f"fully scattered (uncoalesced_access); without counters, a heuristic: {SUSPICIOUS:g}x to {STRIDED:g}x "
    "the minimum DRAM time, unexplained",
    remedy="vector loads, structure of arrays, aligned rows",
    gain_basis="the share of unnecessary sectors, times the share of the time that memory takes",
    advice=(
        "load adjacent elements of a thread as one vector (float2, float4) and use all of it",
        "use a structure of arrays, or load whole structures through shared memory",
        "align rows to 32 bytes, or peel the first elements",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(*ACCESS_METRICS, *stall_metrics(*_STALLS)),
    sample_lines=True,
    claims=("wasted_sectors", *TRAFFIC_PARTS),
)
