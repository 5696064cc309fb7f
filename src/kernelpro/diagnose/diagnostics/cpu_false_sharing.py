"""Threads that write to the same cache lines: atomic additions, or neighbouring elements of one array."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
_ATOMIC_COST = 25.0
"""In simple instructions: an atomic operation takes about 20 cycles alone, more where threads meet."""
_INFLATED = 1.4
"""CPU time of all threads against that of one thread alone. Shared caches and memory account for less
in loops of scalar updates."""


def look(scene: DiagnosticContext) -> Match | None:
    loops = scene.cpu["loops"]
    atomic = [loop for loop in loops if loop["mix"].get("atomic")]
    shared = [loop for loop in loops if loop["updates"] and not loop["bits"] and loop["parallel"]]
    seen = scene.cpu["dynamic"]
    work, alone = sum(t["work_ms"] for t in seen.get("threads", ())), seen.get("alone_ms", 0.0)
    inflated = work / alone if alone > 0 else 1.0
    share = sum(loop["share"] for loop in atomic)
    if share >= _LEAST:
        cost = sum(
            loop["share"]
            * (1 - loop["instructions"] / (loop["instructions"] + _ATOMIC_COST * loop["mix"]["atomic"]))
            for loop in atomic
        )
        saved = max(cost, share * (1 - 1 / max(inflated, 1.0)))
        hot, what = atomic[0], "every turn of the hot loop is an atomic operation on shared memory"
        how = f"{share:.0%} of the time is in loops with atomics, which cost about {_ATOMIC_COST:g} simple instructions each"
    elif (share := sum(loop["share"] for loop in shared)) >= _LEAST and inflated >= _INFLATED:
        saved = share * (1 - 1 / inflated)
        hot, what = (
            shared[0],
            "threads update elements that lie side by side, and pull the cache line from each other",
        )
        how = f"{share:.0%} of the time is in loops that update memory; threads together need {inflated:.1f} times the time of one"
    else:
        return None
    return Match(
        evidence=(
            Evidence("time in loops that update shared memory", share, _LEAST, "of 1"),
            Evidence("CPU time of all threads against one alone", inflated, _INFLATED, "times"),
            Evidence("atomics in one turn of the hot loop", hot["mix"].get("atomic", 0), 0),
        ),
        cause=what,
        advice=(
            "give each thread sums of its own (local variables, an array that it allocates itself) and join them once at the end",
            "reduction(+ : sum) in OpenMP does that for single values and arrays",
            "where one array must hold all threads' parts, keep them 64 bytes apart: part[thread][index]",
        ),
        saved_share=saved,
        basis=how,
        where=hot["where"],
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_false_sharing",
    level="kernel",
    target="cpu",
    analyze=look,
    trigger="a tenth of the time in loops with atomics; or in parallel loops of scalar updates whose threads together "
    "take 1.4 times the CPU time of one thread alone",
    remedy="sums of its own for each thread, joined at the end",
    gain_basis="the atomics' cost in instructions, or the CPU time beyond that of one thread, goes",
)
