"""Threads share the work unevenly: the call lasts as long as the busiest."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Evidence

_ALONE, _EVEN = 1.2, 0.8
"""Below 1.2 threads' worth there is one worker (see cpu_single_thread); above 80 % of the cores the unevenness is that of any run
on a machine that does other things as well."""


def look(scene: DiagnosticContext) -> Match | None:
    cores, seen = scene.cpu["cores"], scene.cpu["dynamic"]
    if "effective_threads" not in seen:
        raise MissingData("calls that were observed")
    effective = seen["effective_threads"]
    if cores < 2 or not _ALONE <= effective < _EVEN * cores:
        return None
    works = [thread["work_ms"] for thread in seen["threads"]]
    host = scene.cpu["shares"]["host"] if scene.cpu["sampled"] else 0.0
    return Match(
        evidence=(
            Evidence("threads' worth of work", effective, _EVEN * cores),
            Evidence("work of the busiest thread", works[0], unit="ms a call"),
            Evidence("work of the next", works[1] if len(works) > 1 else 0.0, unit="ms a call"),
        ),
        cause=f"{cores} cores do the work of {effective:.1f}: the busiest thread works {works[0]:.2f} ms a call, others wait",
        advice=(
            "rows of different cost: schedule(dynamic, 16), or portions of equal work instead of equal count",
            "put the serial parts (totals, set-up) into the parallel region, or shorten them",
            "collapse(2) where the outer loop has few turns",
        ),
        saved_share=(1 - host) * (1 - effective / cores),
        basis=f"evenly shared, {effective:.2f} threads' worth of work takes {effective / cores:.0%} of the busiest thread's time",
        where=next((loop["where"] for loop in scene.cpu["loops"] if loop["parallel"]), ""),
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_imbalance",
    level="system",
    target="cpu",
    analyze=look,
    trigger="work of all threads over that of the busiest lies between 1.2 and 80 % of the cores",
    remedy="dynamic scheduling, portions of equal work, no serial parts",
    gain_basis="the call shrinks to the average thread's work",
    symptom_of=("cpu_call_overhead", "cpu_excess_traffic"),
)
