"""Contended cache lines: atomic additions, or threads that update neighboring elements of one array."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import INFLATED, INTERLEAVED, MIN_SHARE, hot_loops, inflation, interleaves
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_ATOMIC_COST = 120.0
"""In simple instructions: an atomic addition of floats loads, adds and exchanges in a chain, which takes
10 ns on an ARM core and 19 ns on a Xeon, alone on one address."""


def _analyze(context: DiagnosticContext) -> Match | None:
    inflated = inflation(context)
    if loops := hot_loops(context, lambda loop: loop.count("atomic")):
        saved = loops.weighted(
            lambda loop: 1 - _without_atomics(loop, context.cpu.lanes) / max(inflated, 1.0)
        )
        cause = "every iteration of the hot loop executes an atomic operation on shared memory"
        basis = (
            f"{loops.share:.0%} of the time is in loops with atomics, which cost about {_ATOMIC_COST:g} "
            "simple instructions each"
        )
    elif loops := hot_loops(
        context, lambda loop: interleaves(context, loop) or _updates_memory(loop, inflated)
    ):
        saved = loops.weighted(lambda loop: 1 - _without_neighbors(context, loop) / max(inflated, 1.0))
        cause = "false sharing: threads update neighboring elements and invalidate each other's cache line"
        basis = (
            f"{loops.share:.0%} of the time is in loops that update memory; all threads together need "
            f"{inflated:.1f}x the CPU time of one"
        )
    else:
        return None
    return Match(
        evidence=(
            percent("time in loops that update shared memory", loops.share, MIN_SHARE),
            Evidence("CPU time of all threads over one alone", inflated, INFLATED, "x"),
            Evidence("atomics per iteration of the hot loop", loops.worst.count("atomic"), 0),
        ),
        cause=cause,
        saved_share=saved,
        basis=basis,
        where=loops.worst.where,
    )


def _updates_memory(loop: CpuLoop, inflated: float) -> bool:
    return loop.updates > 0 and not loop.bits and loop.parallel and inflated >= INFLATED


def _without_neighbors(context: DiagnosticContext, loop: CpuLoop) -> float:
    """What is left of a loop in whole vectors, where each thread has an array of its own."""
    used = max(1, loop.bits // 32)
    return min(1.0, used / context.cpu.lanes) if interleaves(context, loop) else 1.0


def _without_atomics(loop: CpuLoop, lanes: int) -> float:
    """Share of a loop's time that remains with private sums: the compiler can then also vectorize it."""
    return loop.instructions / (loop.instructions + _ATOMIC_COST * loop.count("atomic")) / lanes


DIAGNOSTIC = Diagnostic(
    name="cpu_false_sharing",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger="a tenth of the time in loops with atomics; or in parallel loops of scalar updates whose threads "
    f"together take {INFLATED:g}x the CPU time of one thread alone; or in loops that update every n-th "
    f"element, with {INTERLEAVED:g}x of it, or faster than cache misses",
    remedy="private sums per thread, combined at the end",
    gain_basis="the atomics' cost in instructions, or the CPU time beyond that of one thread",
    advice=(
        "give each thread private sums (local variables, an array that it allocates itself) and combine them "
        "at the end",
        "use reduction(+ : sum) in OpenMP for single values and arrays",
        "where one array must hold all threads' parts, pad them to 64 bytes: part[thread][index]",
    ),
    claims=(
        "scalar_code",
        "vector_code",
        "native_code",
        "dependency_chains",
        "strided_access",
        "double_precision",
        "idle_cores",
    ),
)
