"""Load imbalance: the call lasts as long as its busiest thread."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import effective_threads, others_wait
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

SINGLE, BALANCED = 1.05, 0.8
"""Below 1.05 effective threads there is one worker (cpu_single_thread); above 80 % of the cores the
imbalance is that of any run on a machine that also does other work."""


def _analyze(context: DiagnosticContext) -> Match | None:
    cpu, cores = context.cpu, context.cpu.cores
    effective = effective_threads(cpu)
    if effective is None:
        raise MissingData("observed calls")
    if cores < 2 or effective >= BALANCED * cores or (effective < SINGLE and not others_wait(cpu)):
        return None
    work = [thread.work_ms for thread in cpu.dynamic.threads]
    interpreter = cpu.shares.host if cpu.sampled else 0.0
    return Match(
        evidence=(
            Evidence("effective threads", effective, BALANCED * cores),
            Evidence("work of the busiest thread", work[0], unit="ms per call"),
            Evidence("work of the next thread", work[1] if len(work) > 1 else 0.0, unit="ms per call"),
        ),
        cause=f"{cores} cores do the work of {effective:.1f}: the busiest thread works {work[0]:.2f} ms per "
        "call, and the others wait for it",
        saved_share=(1 - interpreter) * (1 - effective / cores),
        basis=f"evenly distributed over all cores, the work takes {effective / cores:.0%} of the busiest "
        "thread's time",
        where=next((loop.where for loop in cpu.loops if loop.parallel), ""),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_imbalance",
    level="system",
    target="cpu",
    analyze=_analyze,
    trigger=f"effective threads (work of all threads over that of the busiest) between {SINGLE:g} and "
    f"{BALANCED:.0%} of the cores; or less, if a second thread waits in the hot loop's parallel region",
    remedy="dynamic scheduling, chunks of equal work, no serial parts",
    gain_basis="the time of native code shrinks to the mean work per core",
    advice=(
        "for rows of different cost use schedule(dynamic, 16), or chunks of equal work instead of equal "
        "count",
        "move serial parts (totals, set-up) into the parallel region, or shorten them",
        "use collapse(2) where the outer loop has few iterations",
    ),
    claims=("idle_cores",),
)
