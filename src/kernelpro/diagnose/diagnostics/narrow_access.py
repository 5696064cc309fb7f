"""Loads and stores of few bytes a thread: too little is in flight to fill the memory's pipeline."""

from __future__ import annotations

from kernelpro.diagnose import memory_latency
from kernelpro.diagnose.counters import (
    ATTAINABLE,
    DRAM_THROUGHPUT,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    has_counters,
    stall_metrics,
    stall_share,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import GLOBAL, MATRIX, HotCode, dram_clocks, hot_code
from kernelpro.diagnose.traffic import LOADED_BYTES_USED
from kernelpro.records import Bound, Evidence

_WAITS = ("long_scoreboard", "lg_throttle")
WIDEST = 128
"""Bits that one access moves at most."""
_UNMEASURED = 0.5
"""Part of the gain that is claimed where nothing was measured: warps also overlap loads of different passes."""
_HEALTHY = 0.85
"""Share of the bandwidth's ceiling from which on nothing is missing."""
_WAITING = 0.3
"""Share of the warps' time in waits for global memory: bytes in flight limit only kernels that wait for them."""
_PACKED = 28
"""Bytes used of each sector of 32: with fewer the accesses are scattered, and width is not what is wrong."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    bits = {
        int(width): sum(hot.widths.get(kind, {}).get(width, 0) for kind in GLOBAL)
        for kind in GLOBAL
        for width in hot.widths.get(kind, {})
    }
    moved = sum(width * n for width, n in bits.items())
    narrow = sum(width * n for width, n in bits.items() if width < WIDEST)
    if (
        not moved
        or narrow < moved / 2
        or hot.count(*MATRIX, "tma", "async_copy", "atomic", "local_load")
        or _otherwise_limited(scene, hot)
    ):
        return None
    mean = moved / sum(bits.values())
    needed, flying = memory_latency.required_bytes_in_flight(scene), memory_latency.bytes_in_flight(scene, hot)
    reached = _reached(scene)
    now = min(_HEALTHY, flying / needed) if reached is None else reached
    if now >= _HEALTHY or flying >= needed:
        return None
    then = min(_HEALTHY, now * WIDEST / mean, flying * WIDEST / mean / needed)
    if then <= now:
        return None
    where = scene.code.get("where", {})
    return Match(
        (
            Evidence("bits moved by a thread's access", round(mean), WIDEST, "bits"),
            Evidence("bytes in flight on an SM", round(flying), round(needed), "bytes"),
            Evidence("share of the bandwidth's ceiling", round(100 * now), 100 * _HEALTHY, "%"),
        ),
        (
            f"a thread moves {mean:.0f} bits at a time: {flying / 1024:.0f} KiB are in "
            f"flight on an SM, and filling the bandwidth takes {needed / 1024:.0f} KiB"
        ),
        (
            (
                "move 128 bits with one access (float4, uint4, eight halves); in "
                "Triton give each thread neighbouring elements and tell divisibility"
            ),
            "let each thread do several independent accesses before it uses the first (unroll by 4)",
        ),
        min(1 - now / then, _waiting(scene)) * (1.0 if reached is not None else _UNMEASURED),
        (
            f"bytes in flight grow {WIDEST / mean:.1f}-fold; by Little's law "
            f"the bandwidth goes from {now:.0%} to {then:.0%} of the ceiling"
        ),
        where.get("global_load") or where.get("global_store", ""),
    )


def _waiting(scene: DiagnosticContext) -> float:
    """Share of the warps' time in waits for global memory; 1 where it was not counted."""
    return stall_share(scene, *_WAITS) if has_counters(scene) and scene.metric_or_none(WARP_CYCLES) is not None else 1.0


def _reached(scene: DiagnosticContext) -> float | None:
    """Share of the bandwidth's ceiling that the kernel reaches: by the counters, else by the task's bytes where it is alone."""
    used = scene.metric_or_none(DRAM_THROUGHPUT)
    return used / 100 / ATTAINABLE if used is not None else memory_latency.bandwidth_share(scene)


def _otherwise_limited(scene: DiagnosticContext, hot: HotCode) -> bool:
    if scene.metric_or_none(LOADED_BYTES_USED) is not None and scene.metric(LOADED_BYTES_USED) < _PACKED:
        return True
    if has_counters(scene):
        return scene.metric(SM_THROUGHPUT) > scene.metric(MEMORY_THROUGHPUT) or _waiting(scene) < _WAITING
    return hot.clocks(float(scene.device.get("fp32_to_fp64", 2.0))) > dram_clocks(scene, hot)


DIAGNOSTIC = Diagnostic(
    name="narrow_access",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=(
        f"most bytes move in accesses below {WIDEST} bits, fewer bytes are in flight "
        f"than latency x bandwidth, less than {_HEALTHY:.0%} of the ceiling is reached, and warps wait for memory"
    ),
    remedy="128-bit accesses, several independent ones a thread",
    gain_basis="Little's law: bandwidth grows with the bytes in flight, up to what good kernels reach",
    bounds=frozenset({Bound.MEMORY, Bound.LATENCY, Bound.MIXED}),
    metrics=(LOADED_BYTES_USED, *stall_metrics(*_WAITS)),
    symptom_of=(
        "uncoalesced_access",
        "sector_waste",
        "low_parallelism",
        "occupancy_limiter",
        "tail_effect",
        "divergence",
        "barrier_stall",
        "bank_conflicts",
        "spills",
        "memory_barriers",
        "atomics_contention",
        "double_precision",
        "integer_arithmetic",
        "special_functions",
    ),
)
