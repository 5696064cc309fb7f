"""Repeated passes over each row: later loops find the row in cache, and memory idles meanwhile."""

from __future__ import annotations

from itertools import groupby

from kernelpro.diagnose.cpu_loops import FAR, MIN_PASS_SHARE, require_samples
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Bound, CpuLoop, CpuProfile, Evidence

_SAVED = 1 / 3
"""Saved share of the time outside the longest pass. Fusing three passes over the rows of two layer norms into
two, with the next row prefetched, gave 1.21x and 1.25x on two ARM cores, where this predicts 1.21x and 1.18x;
prefetching alone 1.06x to 1.17x, where it predicts 1.13x."""
_PREFETCH = (
    "prefetch the next row (__builtin_prefetch, line by line) in the last loop over this one, to "
    "keep memory busy"
)
_BOUNDS = frozenset({Bound.MEMORY, Bound.MIXED})


def _analyze(context: DiagnosticContext) -> Match | None:
    require_samples(context)
    if context.headroom < FAR or context.bound not in _BOUNDS:
        return None
    passes = max(_loops_by_row(context.cpu), key=lambda loops: sum(loop.share for loop in loops), default=[])
    prefetches = "prefetch" in context.profile.source
    if len(passes) < (3 if prefetches else 2):
        return None
    shares = [loop.share for loop in passes]
    beside = sum(shares) - max(shares)
    achieved = 1e-6 * context.work.total_bytes / context.profile.time_ms
    required = context.profile.ceilings.bandwidth_for(context.work.total_bytes) / 1e9 / FAR
    places = ", ".join(dict.fromkeys(loop.where for loop in passes if loop.where))
    return Match(
        evidence=(
            Evidence("vector loops over each row", len(passes), 2 if prefetches else 1),
            percent("time in all these loops but the longest", beside),
            Evidence("minimum bytes over the call time", achieved, required, "GB/s"),
        ),
        cause=f"{len(passes)} loops pass over each row ({places}): all but the first find it in cache, and "
        f"memory idles meanwhile; the call takes {context.headroom:.1f}x its floor",
        saved_share=_SAVED * beside,
        basis=f"a third of the {beside:.0%} of the time outside the longest loop, as measured on layer norms",
        where=passes[0].where,
        advice=(
            "fuse loops: accumulate values and their squares (shifted by a number near the mean) in one pass",
            *(() if prefetches else (_PREFETCH,)),
            "keep what several loops compute in a row-sized buffer",
        ),
    )


def _loops_by_row(cpu: CpuProfile) -> list[list[CpuLoop]]:
    """Vector loops, grouped by the loop that encloses them."""
    enclosed = [
        (enclosing, loop)
        for loop in cpu.loops
        if loop.share >= MIN_PASS_SHARE
        and loop.bits
        and loop.streamed
        and not loop.strided
        and (enclosing := _enclosing_loop(cpu, loop))
    ]
    enclosed.sort(key=lambda pair: (pair[0], pair[1].begin))
    return [[loop for _, loop in group] for _, group in groupby(enclosed, key=lambda pair: pair[0])]


def _enclosing_loop(cpu: CpuProfile, loop: CpuLoop) -> tuple[str, str, int, int] | None:
    """The smallest loop around this one: file, function, first and last address."""
    spans = [
        (outer.end - outer.begin, outer.begin, outer.end)
        for function in cpu.static.functions
        if (function.file, function.name) == (loop.file, loop.function)
        for outer in function.loops
        if outer.begin <= loop.begin and loop.end <= outer.end
    ]
    outer_spans = sorted(span for span in spans if span[1:] != (loop.begin, loop.end))
    return (loop.file, loop.function, *outer_spans[0][1:]) if outer_spans else None


DIAGNOSTIC = Diagnostic(
    name="cpu_repeated_passes",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger="two or more vector loops inside the same loop (three where the source prefetches) with at least "
    f"{MIN_PASS_SHARE:.0%} of the time each, in a call over {FAR:g}x its floor whose class is memory or "
    "mixed",
    remedy="fewer loops over a row, and the next row prefetched during the last of them",
    gain_basis="a third of the time outside the longest of the loops",
    bounds=_BOUNDS,
    claims=(
        "vector_code",
        "native_code",
    ),
)
