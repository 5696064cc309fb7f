"""Contended cache lines: atomic additions, or threads that update neighboring elements of one array."""

from __future__ import annotations

from kernelpro.diagnose.cpu_loops import MIN_SHARE, hot_loops, interleaves
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_ATOMIC_COST = 120.0
"""In simple instructions: an atomic addition of floats loads, adds and exchanges in a chain, which takes
10 ns on an ARM core and 19 ns on a Xeon, alone on one address."""
INFLATED, INTERLEAVED = 1.4, 1.15
"""CPU time of all threads over that of one thread alone. Shared caches and memory account for less in
loops of scalar updates. Less is enough where each thread updates every n-th element of an array."""


def _analyze(context: DiagnosticContext) -> Match | None:
    run = context.cpu.dynamic
    inflation = sum(thread.work_ms for thread in run.threads) / run.alone_ms if run.alone_ms else 1.0
    if loops := hot_loops(context, lambda loop: loop.count("atomic")):
        saved = loops.weighted(
            lambda loop: 1 - _without_atomics(loop, context.cpu.lanes) / max(inflation, 1.0)
        )
        cause = "every iteration of the hot loop executes an atomic operation on shared memory"
        basis = (
            f"{loops.share:.0%} of the time is in loops with atomics, which cost about {_ATOMIC_COST:g} "
            "simple instructions each"
        )
    elif loops := hot_loops(context, lambda loop: _updates_neighbors(loop, inflation)):
        saved = loops.weighted(
            lambda loop: 1 - 1 / inflation / (context.cpu.lanes if interleaves(loop) else 1)
        )
        cause = "false sharing: threads update neighboring elements and invalidate each other's cache line"
        basis = (
            f"{loops.share:.0%} of the time is in loops that update memory; all threads together need "
            f"{inflation:.1f}x the CPU time of one"
        )
    else:
        return None
    return Match(
        evidence=(
            percent("time in loops that update shared memory", loops.share, MIN_SHARE),
            Evidence("CPU time of all threads over one alone", inflation, INFLATED, "x"),
            Evidence("atomics per iteration of the hot loop", loops.worst.count("atomic"), 0),
        ),
        cause=cause,
        saved_share=saved,
        basis=basis,
        where=loops.worst.where,
    )


def _updates_neighbors(loop: CpuLoop, inflation: float) -> bool:
    least = INTERLEAVED if interleaves(loop) else INFLATED
    return loop.updates > 0 and not loop.bits and loop.parallel and inflation >= least


def _without_atomics(loop: CpuLoop, lanes: int) -> float:
    """Share of a loop's time that remains with private sums: the compiler can then also vectorize it."""
    return loop.instructions / (loop.instructions + _ATOMIC_COST * loop.count("atomic")) / lanes


DIAGNOSTIC = Diagnostic(
    name="cpu_false_sharing",
    level="kernel",
    target="cpu",
    analyze=_analyze,
    trigger="a tenth of the time in loops with atomics; or in parallel loops of scalar updates whose threads "
    f"together take {INFLATED:g}x the CPU time of one thread alone ({INTERLEAVED:g}x if updates are strided)",
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
