"""Threads of a warp hit the same bank of shared memory, so that one access takes several turns."""

from __future__ import annotations

from kernelpro.diagnose.counters import KERNEL_BOUNDS, has_counters, hottest_line, stall_metrics, stall_share
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.memory_latency import GUESS, SUSPECT, unexplained_slowdown
from kernelpro.diagnose.pipes import hot_code
from kernelpro.records import Evidence

CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
TURNS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
USE = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"
SHARE = 0.25
"""Of the turns: the counter also sees arbitration with other traffic, about 1 % in kernels free of conflicts."""
MATTERS = 0.15
"""Use of the pipe, or share of the time waiting for it, below which conflicts cost nothing."""
_UNPADDED = 4096
"""Bytes of 32 rows of 32 words: a tile whose rows are padded is no multiple of it."""
_WAITS = ("short_scoreboard", "mio_throttle")


def look(scene: DiagnosticContext) -> Match | None:
    if not has_counters(scene) and (found := _suspected(scene)):
        return found
    turns, conflicts = scene.metric(TURNS), scene.metric(CONFLICTS)
    share = min(1.0, conflicts / turns) if turns > 0 else 0.0
    use, waits = scene.metric(USE) / 100, stall_share(scene, *_WAITS)
    weight = min(1.0, max(use, waits))
    if share < SHARE or weight < MATTERS:
        return None
    ways = 1 / (1 - min(share, 0.97))
    return _found(
        (
            Evidence("turns of shared memory caused by bank conflicts", round(100 * share), 100 * SHARE, "%"),
            Evidence("turns an access needs, on average", round(ways, 1), 1),
            Evidence("use of shared memory", round(100 * use), None, "%"),
            Evidence("time that warps wait for shared memory", round(100 * waits), None, "%"),
        ),
        f"accesses to shared memory take {ways:.1f} turns instead of one: threads of a warp meet in the same bank "
        "(a stride that is a multiple of 32 words, typically a column of an unpadded tile)",
        share * weight,
        f"{share:.0%} of the turns disappear, and shared memory sets {weight:.0%} of the time",
        hottest_line(scene.kernel, *_WAITS) or scene.kernel.code.get("where", {}).get("shared_load", ""),
    )


def _suspected(scene: DiagnosticContext) -> Match | None:
    """Values pass through an unpadded tile, word by word, in a kernel that is slower than anything in its code explains."""
    hot, factor = hot_code(scene), unexplained_slowdown(scene)
    size = scene.kernel.static_shared + scene.kernel.dynamic_shared
    stored, loaded = hot.count("shared_store"), hot.count("shared_load")
    exchanged = (
        0 < stored == loaded and stored >= hot.count("global_load") and hot.bytes_moved("shared_load") == 4 * loaded
    )
    if factor < SUSPECT or not exchanged or not size or size % _UNPADDED:
        return None
    return _found(
        (
            Evidence("times what the task's bytes need", round(factor, 1), SUSPECT, "x"),
            Evidence("shared memory of a block", size, None, "bytes"),
        ),
        f"values pass through a tile of {size} bytes, rows of 32 words without padding, and the kernel takes {factor:.1f} times "
        "what its bytes need: columns of the tile may lie in one bank (computed; counters were not available)",
        GUESS,
        f"a guess without counters: {factor:.1f} times what the bytes need",
        scene.code.get("where", {}).get("shared_load", ""),
    )


def _found(evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str) -> Match:
    return Match(
        evidence=evidence,
        cause=cause,
        advice=(
            "pad the rows of the tile by one element (tile[32][33]), or by 16 bytes where vectors are loaded",
            "swizzle: exclusive-or the column index with the row, which costs no memory and suits TMA and ldmatrix",
            "let neighbouring threads read neighbouring words, or exchange within the warp by shuffles",
        ),
        saved_share=saved,
        basis=how,
        where=where,
    )


DIAGNOSTIC = Diagnostic(
    name="bank_conflicts",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"bank conflicts make up {SHARE:.0%} of the turns of shared memory, and that memory is used, or waited for, "
    f"{MATTERS:.0%} of the time; without counters, a suspicion: values pass through an unpadded tile, and the kernel takes "
    f"{SUSPECT:g} times what its bytes need, unexplained",
    remedy="padding or swizzling of shared-memory tiles",
    gain_basis="the share of turns that are conflicts, times how far shared memory sets the time",
    bounds=KERNEL_BOUNDS,
    metrics=(CONFLICTS, TURNS, USE, *stall_metrics(*_WAITS)),
    sample_lines=True,
)
