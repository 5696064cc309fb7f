"""Neighbouring threads touch far-away addresses: a warp's request falls apart into one sector for each thread."""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import (
    KERNEL_BOUNDS,
    MEMORY_THROUGHPUT,
    has_counters,
    hottest_line,
    memory_share,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import GUESS, suspected_sector_waste
from kernelpro.diagnose.traffic import ACCESS_METRICS, FEW_BYTES, SCATTERED, SECTOR, STRIDED, global_accesses
from kernelpro.records import Evidence


def look(scene: DiagnosticContext) -> Match | None:
    if not has_counters(scene) and (suspicion := suspected_sector_waste(scene, STRIDED, math.inf)):
        return _found(
            suspicion.evidence,
            f"the kernel takes {suspicion.factor:.1f} times what its bytes need, and neither its arithmetic nor too few bytes in "
            "flight explain that: its loads may be scattered (computed; counters were not available)",
            GUESS,
            f"a guess without counters: {suspicion.factor:.1f} times what the bytes need",
            scene.code.get("where", {}).get("global_load", ""),
        )
    bad = [
        a for a in global_accesses(scene) if a.excess >= 0.4 and (a.per_request >= SCATTERED or a.used < FEW_BYTES)
    ]
    if not bad:
        return None
    worst = max(bad, key=lambda a: a.excess * a.part)
    waste = sum(a.excess * a.part for a in bad)
    weight = memory_share(scene)
    return _found(
        (
            Evidence(f"sectors a request ({worst.kind})", round(worst.per_request, 1), SCATTERED),
            Evidence(
                f"bytes used of each sector of {SECTOR} ({worst.kind})", round(worst.used, 1), SECTOR, "B"
            ),
            Evidence("use of the memory system", round(scene.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        f"the {' and '.join(a.kind for a in bad)} of a warp are scattered: one request touches {worst.per_request:.0f} "
        f"sectors of {SECTOR} bytes and uses {worst.used:.0f} bytes of each, so {waste:.0%} of the sectors are fetched for nothing",
        waste * weight,
        f"{waste:.0%} of the sectors are needless, and memory sets {weight:.0%} of the time",
        hottest_line(scene.kernel, "long_scoreboard", "lg_throttle"),
    )


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "let neighbouring threads take neighbouring elements: threadIdx.x must run along the contiguous dimension",
            "where the layout forbids that, load tiles row by row into shared memory (rows padded by one) and read them across",
            "store a transposed copy only where it is used several times",
        ),
        saved_share=saved,
        basis=how,
        where=where,
    )


DIAGNOSTIC = Diagnostic(
    name="uncoalesced_access",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"global loads or stores with {SCATTERED} or more sectors a request, or less than {FEW_BYTES} of a sector's 32 bytes "
    "used, where packed accesses would need at most 60 % of the sectors (one value read by a whole warp is no waste); "
    f"without counters, a suspicion: {STRIDED:g} times what the bytes need or more, unexplained",
    remedy="threads along the contiguous dimension; transposition through shared memory",
    gain_basis="the share of needless sectors, times how far memory (its busiest part, or warps waiting for it) sets the time",
    bounds=KERNEL_BOUNDS,
    metrics=(*ACCESS_METRICS, *stall_metrics("long_scoreboard", "lg_throttle")),
    sample_lines=True,
)
