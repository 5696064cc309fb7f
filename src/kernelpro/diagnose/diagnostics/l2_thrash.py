"""Blocks share data, but not at the same time: L2 has lost it before the next block asks, and DRAM delivers it again."""

from __future__ import annotations

from kernelpro.diagnose.counters import DRAM_THROUGHPUT, KERNEL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.traffic import DRAM_READ, DRAM_WRITTEN, L2_READ, SECTOR, excess_traffic
from kernelpro.records import Evidence

HIT_RATE = "lts__t_sector_op_read_hit_rate.pct"
SHARED = 3.5
"""How often each byte of the input is asked of L2: two or three times are passes of one block over its own rows
(excess_traffic); more is sharing between blocks."""
AGAIN = 1.5
"""How often each byte comes from DRAM."""


def look(scene: DiagnosticContext) -> Match | None:
    over = excess_traffic(scene)
    needed = scene.profile.work.get("read_bytes", 0.0)
    if needed <= 0:
        raise MissingData("the bytes that the task reads")
    # Of one launch: further launches read other data, or read it again, which no order of blocks can help.
    asked = scene.metric(L2_READ) * SECTOR / needed
    came = scene.metric(DRAM_READ) / needed
    hits = scene.metric(HIT_RATE) / 100
    possible = 1 - 1 / asked if asked > 1 else 0.0
    if asked < SHARED or came < AGAIN or hits > possible - 0.1 or over.bound < 0.5:
        return None
    size = scene.device.get("l2_bytes", 0) / 1e6
    return Match(
        evidence=(
            Evidence("L2 hit rate of reads", round(100 * hits), round(100 * possible), "%"),
            Evidence("times each input byte is asked of L2", round(asked, 1), SHARED),
            Evidence("times each input byte comes from DRAM", round(came, 1), AGAIN),
        ),
        cause=f"each input byte is read {asked:.1f} times, yet only {hits:.0%} of the reads hit L2 ({possible:.0%} could): what "
        f"running blocks share does not stay in its {size:.0f} MB until it is used again, and DRAM delivers it {came:.1f} times",
        advice=(
            "let blocks that run at the same time share operands: walk tiles in groups (swizzled block indices), not row by row",
            "split the shared operand into parts well below the size of L2, each used by all blocks before the next",
            "load what is used once with an evict-first hint, and keep what is shared (evict-last, persisting window)",
        ),
        saved_share=over.saved,
        basis=f"{1 - 1 / max(1.0, over.factor):.0%} of DRAM's bytes are repetitions, and DRAM sets {over.bound:.0%} of the time",
    )


DIAGNOSTIC = Diagnostic(
    name="l2_thrash",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"each input byte is asked of L2 {SHARED} times or more, comes from DRAM {AGAIN} times or more, the hit rate is 10 "
    "points below the possible one, and DRAM sets at least half of the time",
    remedy="an order of blocks that keeps shared operands in L2; smaller working set; eviction hints",
    gain_basis="the share of bytes through DRAM beyond the fewest, times how far DRAM sets the time",
    bounds=KERNEL_BOUNDS,
    metrics=(DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN, L2_READ, HIT_RATE),
    symptom_of=("uncoalesced_access", "sector_waste", "missing_reuse", "spills"),
)
