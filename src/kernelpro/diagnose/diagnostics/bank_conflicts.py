"""Shared memory bank conflicts: threads of a warp access the same bank, and the access is replayed."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS, WAVEFRONTS, stall_metrics
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.memory_latency import SUSPICIOUS, UNPROVEN_GAIN, unexplained_slowdown
from kernelpro.diagnose.occupancy import shared_bytes
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
UTILIZATION = f"{WAVEFRONTS}.pct_of_peak_sustained_elapsed"
SHARE = 0.25
"""Share of the wavefronts. The counter includes arbitration with other traffic, about 1 % in conflict-free
kernels."""
MATTERS = 0.15
"""Utilization of shared memory, or stalls on it, below which conflicts cost nothing."""
_UNPADDED = 4096
"""Bytes of 32 rows of 32 words; the size of a padded tile is not a multiple of it."""
_STALLS = ("short_scoreboard", "mio_throttle")


def _analyze(context: DiagnosticContext) -> Match | None:
    if not context.has_counters and (suspicion := _suspect(context)):
        return suspicion
    wavefronts, conflicts = context.metric(WAVEFRONTS), context.metric(CONFLICTS)
    share = min(1.0, conflicts / wavefronts) if wavefronts > 0 else 0.0
    utilization, stalled = context.metric(UTILIZATION) / 100, context.stall_share(*_STALLS)
    weight = min(1.0, max(utilization, stalled))
    if share < SHARE or weight < MATTERS:
        return None
    ways = 1 / (1 - min(share, 0.97))
    return Match(
        evidence=(
            percent("shared memory wavefronts caused by bank conflicts", share, SHARE),
            Evidence("wavefronts per access, on average", round(ways, 1), 1),
            percent("shared memory utilization", utilization),
            percent("warp cycles stalled on shared memory", stalled),
        ),
        cause=f"{ways:.1f}-way bank conflicts in shared memory: threads of a warp access the same bank (a "
        "stride that is a multiple of 32 words, typically a column of an unpadded tile)",
        saved_share=share * weight,
        basis=f"{share:.0%} of the wavefronts disappear, and shared memory takes {weight:.0%} of the time",
        where=context.hottest_line(*_STALLS) or context.line_of("shared_load"),
    )


def _suspect(context: DiagnosticContext) -> Match | None:
    """Values go through an unpadded tile, word by word, and the code does not explain the time."""
    hot, slowdown = hot_code(context), unexplained_slowdown(context)
    size = shared_bytes(context.kernel)
    stored, loaded = hot.count("shared_store"), hot.count("shared_load")
    by_words = stored >= hot.count("global_load") and hot.bytes_moved("shared_load") == 4 * loaded
    if (
        slowdown.factor < SUSPICIOUS
        or not 0 < stored == loaded
        or not by_words
        or not size
        or size % _UNPADDED
    ):
        return None
    return Match(
        evidence=(slowdown.evidence, Evidence("shared memory per block", size, None, "bytes")),
        cause=f"data goes through an unpadded tile of {size} bytes (rows of 32 words), and the kernel takes "
        f"{slowdown.factor:.1f}x the minimum DRAM time of the task's bytes: accesses by column may conflict "
        "in one bank (no counters)",
        saved_share=UNPROVEN_GAIN,
        basis=slowdown.basis,
        where=context.line_of("shared_load"),
    )


DIAGNOSTIC = Diagnostic(
    name="bank_conflicts",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"bank conflicts cause {SHARE:.0%} of the shared memory wavefronts, and shared memory is "
    f"utilized, or warps stall on it, {MATTERS:.0%} of the time; without counters, a heuristic: data goes "
    f"through an unpadded tile, and the kernel takes {SUSPICIOUS:g}x its minimum DRAM time, unexplained",
    remedy="pad or swizzle shared memory tiles",
    gain_basis="the share of wavefronts that conflicts cause, times the share of the time that shared memory "
    "takes",
    advice=(
        "pad the rows of the tile by one element (tile[32][33]), or by 16 bytes for vector loads",
        "swizzle: XOR the column index with the row index, which costs no memory and suits TMA and ldmatrix",
        "let neighboring threads access neighboring words, or exchange data with warp shuffles",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(CONFLICTS, WAVEFRONTS, UTILIZATION, *stall_metrics(*_STALLS)),
    sample_lines=True,
    claims=(
        "bank_conflicts",
        "waiting_for_shared_memory",
    ),
)
