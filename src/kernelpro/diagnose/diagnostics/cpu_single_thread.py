"""One thread does all the work while other cores have nothing to do."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

ALONE = 1.2
"""Threads' worth of work up to which the rest are helpers (allocation, a short prologue), not partners."""


def look(scene: DiagnosticContext) -> Match | None:
    cores, seen = scene.cpu["cores"], scene.cpu["dynamic"]
    if "effective_threads" not in seen:
        raise MissingData("calls that were observed")
    effective = seen["effective_threads"]
    if cores < 2 or effective >= ALONE:
        return None
    shares = scene.cpu["shares"]
    native = (
        shares["native"] + shares["math"]
        if scene.cpu["sampled"]
        else min(1.0, seen["native_ms"] / seen["call_ms"])
    )
    if native <= 0:
        return None
    return Match(
        evidence=(
            Evidence("threads' worth of work", effective, ALONE),
            Evidence("cores", cores),
            Evidence("time in native code", native, unit="of 1"),
        ),
        cause=f"one thread does the work of a call; {cores - 1} of {cores} cores wait",
        advice=(
            "put #pragma omp parallel for schedule(static) over the outermost loop of independent rows",
            "where there is one long row only, split it and join the parts at the end",
        ),
        saved_share=native * (1 - 1 / cores),
        basis=f"native code is {native:.0%} of the time and can be shared by {cores} cores",
        where=next((loop["where"] for loop in scene.cpu["loops"] if not loop["parallel"]), ""),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_single_thread",
    level="system",
    target="cpu",
    analyze=look,
    trigger="fewer than 1.2 threads' worth of work (work of all threads over that of the busiest, "
    "waiting excluded) on two or more cores, some of it in native code of the candidate",
    remedy="OpenMP over the outermost independent loop",
    gain_basis="the time in native code is divided by the number of cores",
)
