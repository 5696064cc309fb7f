"""Sectors used in part: strides of two to four elements, arrays of structures, rows that start off a boundary."""

from __future__ import annotations

from kernelpro.diagnose.counters import (
    KERNEL_BOUNDS,
    MEMORY_THROUGHPUT,
    has_counters,
    hottest_line,
    memory_share,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import GUESS, SUSPECT, suspected_sector_waste
from kernelpro.diagnose.traffic import ACCESS_METRICS, FEW_BYTES, SCATTERED, SECTOR, STRIDED, global_accesses
from kernelpro.records import Evidence

WASTE = 0.2
"""Rows off a boundary cost one sector more in 16 (6 %) for 16-byte accesses, one in 4 (20 %) for 4-byte ones."""


def look(scene: DiagnosticContext) -> Match | None:
    if not has_counters(scene) and (suspicion := suspected_sector_waste(scene, SUSPECT, STRIDED)):
        return _found(
            suspicion.evidence,
            f"the kernel takes {suspicion.factor:.1f} times what its bytes need, and neither its arithmetic nor too few bytes in "
            "flight explain that: its loads may use sectors only in part (computed; counters were not available)",
            GUESS,
            f"a guess without counters: {suspicion.factor:.1f} times what the bytes need",
            scene.code.get("where", {}).get("global_load", ""),
        )
    bad = [
        a for a in global_accesses(scene) if a.excess > WASTE and a.per_request < SCATTERED and a.used >= FEW_BYTES
    ]
    if not bad:
        return None
    worst = max(bad, key=lambda a: a.excess * a.part)
    waste = sum(a.excess * a.part for a in bad)
    weight = memory_share(scene)
    return _found(
        (
            Evidence(
                f"bytes used of each sector of {SECTOR} ({worst.kind})",
                round(worst.used, 1),
                (1 - WASTE) * SECTOR,
                "B",
            ),
            Evidence(f"sectors a request ({worst.kind})", round(worst.per_request, 1), None),
            Evidence("use of the memory system", round(scene.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        f"the {' and '.join(a.kind for a in bad)} use {worst.used:.0f} of the {SECTOR} bytes of each sector: a stride "
        f"between threads, fields of a structure, or rows off a boundary; {waste:.0%} of the sectors are fetched for nothing",
        waste * weight,
        f"{waste:.0%} of the sectors are needless, and memory sets {weight:.0%} of the time",
        hottest_line(scene.kernel, "long_scoreboard", "lg_throttle"),
    )


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "let a thread take what lies side by side as one vector (float2, float4) and use all of it",
            "keep fields in arrays of their own (structure of arrays), or load whole structures through shared memory",
            "start rows on a 32-byte boundary, or peel the first elements",
        ),
        saved_share=saved,
        basis=how,
        where=where,
    )


DIAGNOSTIC = Diagnostic(
    name="sector_waste",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"global loads or stores of which packed accesses would need {WASTE:.0%} fewer sectors, short of complete scatter "
    f"(that is uncoalesced_access); without counters, a suspicion: {SUSPECT:g} to {STRIDED:g} times what the bytes "
    "need, unexplained",
    remedy="vector loads, structure of arrays, aligned rows",
    gain_basis="the share of needless sectors, times how far memory sets the time",
    bounds=KERNEL_BOUNDS,
    metrics=(*ACCESS_METRICS, *stall_metrics("long_scoreboard", "lg_throttle")),
    sample_lines=True,
)
