"""Single thread: one thread does all the work while other cores idle."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import native_libc_share, others_wait
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent
from kernelpro.records import Evidence

SINGLE = 1.05
"""Effective threads up to which other threads do no real work (allocation, a short prologue)."""


def _analyze(context: DiagnosticContext) -> Match | None:
    cpu, cores, run = context.cpu, context.cpu.cores, context.cpu.dynamic
    if run.effective_threads is None:
        raise MissingData("observed calls")
    if cores < 2 or run.effective_threads >= SINGLE or others_wait(cpu):
        return None
    native = cpu.shares.native + cpu.shares.libm + native_libc_share(cpu)
    if not cpu.sampled:
        native = min(1.0, run.native_ms / run.call_ms) if run.native_ms and run.call_ms else 0.0
    if native <= 0:
        return None
    return Match(
        evidence=(
            Evidence("effective threads", run.effective_threads, SINGLE),
            Evidence("cores", cores),
            percent("time in native code", native),
        ),
        cause=f"one thread does the work of a call; {cores - 1} of {cores} cores idle",
        saved_share=native * (1 - 1 / cores),
        basis=f"native code takes {native:.0%} of the time and can be distributed over {cores} cores",
        where=next((loop.where for loop in cpu.loops if not loop.parallel), ""),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_single_thread",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger=f"fewer than {SINGLE:g} effective threads (work of all threads over that of the busiest, without "
    "waiting) on two or more cores, some of it in the candidate's native code, and no second thread in a "
    "parallel region around the hot loop",
    remedy="OpenMP over the outermost independent loop",
    gain_basis="the time of native code shrinks to 1 / cores",
    advice=(
        "put #pragma omp parallel for schedule(static) over the outermost loop of independent rows",
        "where there is only one long row, split it and combine the parts at the end",
    ),
    claims=("idle_cores",),
)
