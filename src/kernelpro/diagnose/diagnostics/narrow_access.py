"""Narrow memory accesses: few bytes per thread, so too few bytes are in flight to saturate memory."""

from __future__ import annotations

from kernelpro.diagnose.counters import (
    ATTAINABLE,
    DRAM_THROUGHPUT,
    LOADED_BYTES_USED,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    WARP_CYCLES,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.hot_code import GLOBAL, MATRIX, TINY_BITS, HotCode
from kernelpro.diagnose.memory_latency import bandwidth_share, bytes_in_flight, required_bytes_in_flight
from kernelpro.diagnose.pipes import dram_clocks, hot_code
from kernelpro.records import Bound, Evidence, PartKind

_STALLS = ("long_scoreboard", "lg_throttle")
WIDEST = 128
"""Bits of the widest access."""
_UNPROVEN = 0.5
"""Share of the gain that is claimed if nothing was measured: warps also overlap loads of different
iterations."""
HEALTHY = 0.85
"""Share of the peak bandwidth that good kernels reach."""
_BUSY = 60
"""Percent of their peak from which the SMs limit a kernel whose memory is less busy."""
_MIN_STALLED = 0.3
"""Share of warp cycles stalled on global memory: bytes in flight limit only kernels that wait for them."""
_PER_ACCESS: tuple[PartKind, ...] = (
    *("integer_instructions", "memory_instructions", "control_flow", "conversions", "cache_traffic"),
    *("wasted_sectors", "waiting_for_memory_queue", "instructions"),
)
"""Parts of the time account that grow with the number of accesses."""
_MIN_SAVED = 0.1
_COALESCED = 28
"""Bytes used of each 32-byte sector: with fewer, the accesses are scattered, and width is not the problem."""


def _analyze(context: DiagnosticContext) -> Match | None:
    hot = hot_code(context)
    widths = [(int(bits), n) for kind in GLOBAL for bits, n in hot.widths.get(kind, {}).items()]
    moved = sum(width * n for width, n in widths)
    narrow = sum(width * n for width, n in widths if width < WIDEST)
    if not moved or narrow < moved / 2 or hot.count(*MATRIX, "tma", "async_copy", "atomic", "local_load"):
        return None
    mean = moved / sum(n for _, n in widths)
    if mean <= TINY_BITS and context.has_counters and (match := _too_many_instructions(context, mean)):
        return match
    if _is_limited_otherwise(context, hot):
        return None
    required, in_flight = required_bytes_in_flight(context), bytes_in_flight(context, hot)
    measured = _measured_bandwidth_share(context)
    now = min(HEALTHY, in_flight / required) if measured is None else measured
    after = min(HEALTHY, now * WIDEST / mean, in_flight * WIDEST / mean / required)
    if now >= HEALTHY or in_flight >= required or after <= now:
        return None
    return Match(
        evidence=(
            Evidence("bits per access of a thread", round(mean), WIDEST, "bits"),
            Evidence("bytes in flight per SM", round(in_flight), round(required), "bytes"),
            percent("share of the peak bandwidth", now, HEALTHY),
        ),
        cause=f"a thread moves {mean:.0f} bits per access: {in_flight / 1024:.0f} KiB are in flight per SM, "
        f"but saturating the bandwidth takes {required / 1024:.0f} KiB",
        saved_share=min(1 - now / after, _stalled(context)) * (_UNPROVEN if measured is None else 1.0),
        basis=f"bytes in flight grow {WIDEST / mean:.1f}x; by Little's law the bandwidth goes from {now:.0%} "
        f"to {after:.0%} of the peak",
        where=context.line_of("global_load", "global_store"),
    )


def _too_many_instructions(context: DiagnosticContext, mean: float) -> Match | None:
    """Accesses of one or two bytes: each has its own address and bounds check, which wider accesses share."""
    used = context.metric_or_none(LOADED_BYTES_USED)
    overhead = context.part_share(*_PER_ACCESS)
    saved = overhead * (1 - mean / WIDEST)
    if saved < _MIN_SAVED or (used is not None and used < _COALESCED / 2):
        return None
    return Match(
        evidence=(
            Evidence("bits per access of a thread", round(mean), WIDEST, "bits"),
            percent("time of addresses, bounds checks and accesses", overhead),
        ),
        cause=f"a thread moves only {mean:.0f} bits per access, and each access has its own address and "
        f"bounds check: these take {overhead:.0%} of the time",
        saved_share=saved,
        basis=f"accesses of {WIDEST} bits need {mean / WIDEST:.0%} of these instructions",
        where=context.line_of("global_load", "global_store"),
    )


def _stalled(context: DiagnosticContext) -> float:
    """Share of warp cycles stalled on global memory; 1 where it was not counted."""
    counted = context.has_counters and context.metric_or_none(WARP_CYCLES) is not None
    return context.stall_share(*_STALLS) if counted else 1.0


def _measured_bandwidth_share(context: DiagnosticContext) -> float | None:
    """Share of the peak bandwidth: by counters, else by the task's bytes if the kernel dominates."""
    throughput = context.metric_or_none(DRAM_THROUGHPUT)
    return throughput / 100 / ATTAINABLE if throughput is not None else bandwidth_share(context)


def _is_limited_otherwise(context: DiagnosticContext, hot: HotCode) -> bool:
    used = context.metric_or_none(LOADED_BYTES_USED)
    if used is not None and used < _COALESCED:
        return True
    if context.has_counters:
        busier = context.metric(SM_THROUGHPUT) > max(_BUSY, context.metric(MEMORY_THROUGHPUT))
        return busier or _stalled(context) < _MIN_STALLED
    return hot.clocks(context.device.fp64_slowdown) > dram_clocks(context, hot)


DIAGNOSTIC = Diagnostic(
    name="narrow_access",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"most bytes move in accesses below {WIDEST} bits, fewer bytes are in flight than latency x "
    f"bandwidth, less than {HEALTHY:.0%} of the peak bandwidth is reached, and warps stall on memory; or "
    f"accesses of at most {TINY_BITS} bits, whose addresses and bounds checks take the time",
    remedy="128-bit accesses, several independent ones per thread",
    gain_basis="Little's law: bandwidth grows with the bytes in flight, up to what good kernels reach",
    advice=(
        "use 128-bit accesses (float4, uint4, eight halves); in Triton, give each thread contiguous elements "
        "and declare divisibility",
        "issue several independent accesses per thread before the first use (unroll by 4)",
    ),
    bounds=frozenset({Bound.MEMORY, Bound.LATENCY, Bound.MIXED}),
    metrics=(LOADED_BYTES_USED, *stall_metrics(*_STALLS)),
    claims=(
        "waiting_for_memory",
        "waiting_for_memory_queue",
        "memory_instructions",
        "integer_instructions",
        "control_flow",
        "conversions",
        "cache_traffic",
    ),
)
