"""Parallel overhead: a loop opens parallel regions, fetches small chunks, takes locks or starts threads."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import (
    LOCKS,
    STARTS_THREADS,
    coordination_calls,
    coordination_share,
    effective_threads,
    libc_coordination_share,
    undisturbed_ms,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import Evidence

MIN_SHARE = 0.04
"""Share of the threads' time in the OpenMP runtime, in locks and in new threads."""
_FREE = 0.8
"""Time of a call with one thread, divided by the cores, over that with all threads, from which they hardly
wait for each other."""
_REGIONS = (
    "open one parallel region around the outer loop, and distribute its iterations: #pragma omp parallel for",
    "where inner loops must share the work, use one `omp parallel` outside and `omp for nowait` inside",
)
_PIECES = (
    "use schedule(static), or larger chunks: schedule(dynamic, 16) rows or more",
    "distribute rows instead of blocks of a few elements",
)
_THREADS = (
    "use OpenMP, whose threads wait between parallel regions: one #pragma omp parallel for around the loop",
    "start each thread once, and give it all its work",
)
_LOCKS = (
    "give each thread private sums, and combine them once at the end",
    "collect a large block of updates per lock",
)


def _analyze(context: DiagnosticContext) -> Match | None:
    cpu, run = context.cpu, context.cpu.dynamic
    names = coordination_calls(cpu)
    waiting = coordination_share(context.profile, cpu)
    if not names or waiting < MIN_SHARE:
        return None
    if any(STARTS_THREADS.search(name) for name in names):
        cause, advice = "a loop starts threads in each iteration, and waits for them", _THREADS
        names = ["std::thread"]
    elif any(LOCKS.search(name) for name in names):
        cause, advice = "a loop takes a lock: one thread works, the others wait for it", _LOCKS
        if run.alone_ms and run.alone_ms / cpu.cores >= _FREE * context.profile.time_ms:
            cause = "a loop takes a lock, which costs time even where no other thread holds it"
    elif any("parallel" in name or "fork" in name for name in names):
        cause, advice = "a loop opens a parallel region in each iteration: threads start and join", _REGIONS
    else:
        cause, advice = "threads fetch small chunks of work, each through the OpenMP runtime", _PIECES
    effective = effective_threads(cpu) or float(cpu.cores)
    left = (1 - waiting) * effective / cpu.cores
    if not all("next" in name for name in names):  # other load on the machine lengthens the waits
        work = sum(thread.work_ms for thread in run.threads) * (1 - libc_coordination_share(cpu))
        work = min(work, undisturbed_ms(cpu))
        left = max(left, min(1.0, work / cpu.cores / context.profile.time_ms))
    return Match(
        evidence=(
            percent("time of all threads that coordination takes", waiting, MIN_SHARE),
            Evidence("effective threads", effective, cpu.cores),
            *(() if run.alone_ms is None else (Evidence("call with one thread", run.alone_ms, unit="ms"),)),
        ),
        cause=f"{cause} ({', '.join(names[:2])})",
        saved_share=1 - left,
        basis=f"without waiting and evenly distributed, {left:.0%} of the time remains",
        where=next((loop.where for loop in cpu.loops if loop.parallel), ""),
        advice=advice,
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_parallel_overhead",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger="a loop opens a parallel region, fetches the next chunk of a dynamic schedule, takes a lock or "
    f"starts a thread, and threads spend at least {MIN_SHARE:.0%} of their time in that",
    remedy="one parallel region with large chunks of work and private sums",
    gain_basis="the waiting and the idle cores; the work of one thread, divided among the cores, remains",
    claims=("thread_coordination", "idle_cores"),
)
