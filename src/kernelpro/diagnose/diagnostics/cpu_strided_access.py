"""Strided access: the loop jumps from row to row and uses one number of each cache line."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import MIN_SHARE, hot_loops, interleaves
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_LINE = 64
"""Bytes of a cache line."""


_LOAD, _STORE = 0.68, 1.9
"""Cost of a strided byte in a transposition over that of a contiguous one, per float of a vector: the next
rows stay in cache for a while."""
_SCALAR = 0.375
"""Gain of contiguous accesses beyond that of fewer bytes, per float of a vector: vectors, prefetching, fewer
TLB misses."""


def _analyze(context: DiagnosticContext) -> Match | None:
    loops = hot_loops(context, lambda loop: _is_strided(context, loop))
    if loops is None:
        return None
    worst, misses = loops.worst, context.cpu.dynamic.counters.get("cache_misses")
    required = context.work.total_bytes
    return Match(
        evidence=(
            percent("time in loops with strided accesses", loops.share, MIN_SHARE),
            Evidence("strided accesses per iteration of the hot loop", worst.strided, 0),
            Evidence("contiguous accesses per iteration", worst.streamed),
            *(
                ()
                if misses is None
                else (Evidence("bytes fetched on cache misses per call", misses * _LINE, required, "B"),)
            ),
        ),
        cause="each iteration of the hot loop accesses another row: it uses "
        f"{worst.strided_bytes // worst.strided} of the {_LINE} bytes of a cache line, and the compiler "
        "cannot use vector loads",
        saved_share=loops.weighted(lambda loop: 1 - 1 / _speedup(loop, context.cpu.lanes)),
        basis=f"{loops.share:.0%} of the time is in these loops, which move {_waste(worst):.1f}x the bytes "
        "that they use" + ("; part of these bytes stays in cache" if _transposes(worst) else ""),
        where=worst.where,
    )


def _is_strided(context: DiagnosticContext, loop: CpuLoop) -> bool:
    strides = loop.strided > 0 and 4 * loop.strided_bytes >= loop.streamed_bytes
    return strides and not interleaves(context, loop)


def _waste(loop: CpuLoop) -> float:
    """Moved over used bytes."""
    used = loop.strided_bytes + loop.streamed_bytes
    return (loop.strided * _LINE + loop.streamed_bytes) / used


def _transposes(loop: CpuLoop) -> bool:
    """Whether the loop transposes: it stores, and one side is contiguous; another loop order strides on the
    other."""
    return loop.streamed > 2 * loop.updates and loop.count("store") > 0


def _speedup(loop: CpuLoop, lanes: int) -> float:
    """Speed-up of the loop with another loop order, or in tiles.

    Measured on two ARM cores: a copy in column order took 37x the time in row order, a column sum 22x; a
    transposition took 1.4x to 1.7x the time in tiles with strided loads and 3.4x to 4.4x with strided stores,
    where the bytes would say 6x and 11x. On a Xeon, with vectors of eight floats, 2x to 4x and 7x to 14x.
    """
    if not _transposes(loop):
        return max(1.0, _SCALAR * lanes * _waste(loop))
    stores = loop.strided_bytes * loop.strided_stores / loop.strided
    strided = _LOAD * (loop.strided_bytes - stores) + _STORE * stores
    cost = loop.streamed_bytes + max(lanes * strided, loop.strided_bytes)
    return cost / (loop.strided_bytes + loop.streamed_bytes)


DIAGNOSTIC = Diagnostic(
    name="cpu_strided_access",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger="loops with at least a tenth of the time that access single values with a stride of 1 KiB or "
    "more, or with a stride in a register, or gather with such strides",
    remedy="loop order along rows, tiles, packing",
    gain_basis="cache lines moved (64 bytes per strided access) shrink to the bytes used",
    advice=(
        "interchange the loops, so that the innermost one runs along a row; for column sums keep a row of "
        "sums",
        "work in tiles (32 x 32) through a small buffer where one side must be transposed",
        "pack the strided operand once into a contiguous buffer where it is used many times",
    ),
    claims=("strided_access",),
)
