"""Uncoalesced global memory access: a warp's request touches up to one sector per thread."""

from __future__ import annotations

import math

from kernelpro.diagnose.account import TRAFFIC_PARTS
from kernelpro.diagnose.counters import (
    DRAM_READ,
    DRAM_WRITTEN,
    KERNEL_BOUNDS,
    MEMORY_THROUGHPUT,
    SECTOR,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import suspect_sector_waste
from kernelpro.diagnose.traffic import (
    ACCESS_METRICS,
    FEW_BYTES,
    SCATTERED,
    STRIDED,
    required_bytes,
    wasted_sectors,
)
from kernelpro.records import Evidence

_STALLS = ("long_scoreboard", "lg_throttle")


_ALL = 0.7
"""Share of the time in memory from which scattered accesses explain the rest too: few requests complete at a
time, and all other work waits for them. If evicted lines are read from DRAM again, the time grows with the
square root of the DRAM bytes over the minimum. Measured slowdowns: 8x without rereads, 10 to 16x at 1.6 times
the minimum, 16x at 3.4, 24x at 6.6."""


def _analyze(context: DiagnosticContext) -> Match | None:
    if suspicion := suspect_sector_waste(context, STRIDED, math.inf, "its loads may be uncoalesced"):
        return suspicion
    wasted = wasted_sectors(
        context, lambda a: a.excess >= 0.4 and (a.per_request >= SCATTERED or a.used < FEW_BYTES)
    )
    if wasted is None:
        return None
    worst, weight = wasted.worst, context.memory_share
    weight = 1.0 if weight >= _ALL else weight
    counted = sum(context.metric_or_none(name) or 0.0 for name in (DRAM_READ, DRAM_WRITTEN))
    moved = max(1.0, context.launches * counted / required_bytes(context))
    slower = math.sqrt(moved)
    return Match(
        evidence=(
            Evidence(f"sectors per request ({worst.kind})", round(worst.per_request, 1), SCATTERED),
            Evidence(
                f"bytes used per {SECTOR}-byte sector ({worst.kind})", round(worst.used, 1), SECTOR, "B"
            ),
            Evidence("memory throughput", round(context.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        cause=f"uncoalesced {wasted.kinds}: a request touches {worst.per_request:.0f} sectors of {SECTOR} "
        f"bytes and uses {worst.used:.0f} bytes of each, so {wasted.share:.0%} of the sectors are wasted",
        saved_share=1 - (1 - wasted.share * weight) / slower,
        basis=f"{wasted.share:.0%} of the sectors are unnecessary, and memory takes {weight:.0%} of the time"
        + (f"; DRAM moves {moved:.1f}x the task's bytes, which slows it further" if slower > 1 else ""),
        where=context.hottest_line(*_STALLS),
    )


DIAGNOSTIC = Diagnostic(
    name="uncoalesced_access",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"global loads or stores with {SCATTERED} or more sectors per request, or less than {FEW_BYTES} "
    "of a sector's 32 bytes used, where coalesced accesses would need at most 60 % of the sectors (a "
    f"broadcast wastes nothing); without counters, a heuristic: {STRIDED:g}x the minimum DRAM time or more, "
    "unexplained",
    remedy="threads along the contiguous dimension; transposition through shared memory",
    gain_basis="the share of unnecessary sectors, times the share of the time that memory (its busiest part, "
    "or stalls on it) takes",
    advice=(
        "coalesce: let neighboring threads access neighboring elements (threadIdx.x along the contiguous "
        "dimension)",
        "where the layout forbids that, load tiles by rows into padded shared memory and read them by "
        "columns",
        "store a transposed copy only where it is used several times",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(*ACCESS_METRICS, *stall_metrics(*_STALLS)),
    sample_lines=True,
    claims=("wasted_sectors", *TRAFFIC_PARTS),
)
