"""L2 thrashing: blocks share data, but L2 evicts it before the next block reads it."""

from __future__ import annotations

from kernelpro.diagnose.counters import DRAM_READ, DRAM_THROUGHPUT, DRAM_WRITTEN, KERNEL_BOUNDS, SECTOR
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.traffic import L2_READ, excess_traffic
from kernelpro.records import Evidence

HIT_RATE = "lts__t_sector_op_read_hit_rate.pct"
SHARED = 3.5
"""L2 reads per input byte: two or three are passes of one block over its own rows (excess_traffic); more
is sharing between blocks."""
REREAD = 1.5
"""DRAM reads per input byte."""


def _analyze(context: DiagnosticContext) -> Match | None:
    traffic = excess_traffic(context)
    inputs = context.work.read_bytes
    if inputs <= 0:
        raise MissingData("the bytes that the task reads")
    # Counters of one launch: the order of its blocks cannot affect what other launches read.
    l2_reads = context.metric(L2_READ) * SECTOR / inputs
    dram_reads = context.metric(DRAM_READ) / inputs
    hits = context.metric(HIT_RATE) / 100
    possible = 1 - 1 / l2_reads if l2_reads > 1 else 0.0
    if l2_reads < SHARED or dram_reads < REREAD or hits > possible - 0.1 or traffic.dram_share < 0.5:
        return None
    size = (context.device.l2_bytes or 0) / 1e6
    return Match(
        evidence=(
            Evidence("L2 read hit rate", round(100 * hits), round(100 * possible), "%"),
            Evidence("L2 reads per input byte", round(l2_reads, 1), SHARED),
            Evidence("DRAM reads per input byte", round(dram_reads, 1), REREAD),
        ),
        cause=f"each input byte is read {l2_reads:.1f} times, but only {hits:.0%} of the reads hit L2 "
        f"({possible:.0%} could): data shared by blocks is evicted from the {size:.0f} MB L2 before its "
        f"reuse, and DRAM delivers it {dram_reads:.1f} times",
        saved_share=traffic.saved_share,
        basis=f"{1 - 1 / max(1.0, traffic.factor):.0%} of the DRAM bytes are repeated, and DRAM takes "
        f"{traffic.dram_share:.0%} of the time",
    )


DIAGNOSTIC = Diagnostic(
    name="l2_thrash",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"{SHARED} L2 reads or more and {REREAD} DRAM reads or more per input byte, a hit rate 10 points "
    "below the possible one, and DRAM takes at least half of the time",
    remedy="a block order that keeps shared operands in L2; smaller working set; eviction hints",
    gain_basis="the share of DRAM bytes beyond the minimum, times the share of the time that DRAM takes",
    advice=(
        "let concurrent blocks share operands: traverse tiles in groups (swizzled block indices), not row by "
        "row",
        "split the shared operand into parts well below the L2 size, each used by all blocks before the next",
        "load single-use data with an evict-first hint, and keep shared data (evict-last, persisting window)",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN, L2_READ, HIT_RATE),
    claims=(
        "dram_traffic",
        "cache_traffic",
        "waiting_for_memory",
    ),
)
