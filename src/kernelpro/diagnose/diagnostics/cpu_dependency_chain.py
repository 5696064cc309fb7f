"""Dependency chain: a sum in one variable, where each addition waits for the previous one."""

from __future__ import annotations

from kernelpro.diagnose.account.cpu import LOCKS
from kernelpro.diagnose.account.loop_time import folds_in_order, own_calls
from kernelpro.diagnose.cpu_loops import MAX_CHAINS, MIN_SHARE, hot_loops
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.records import CpuLoop, Evidence

_THROUGH_MEMORY = 3.0
"""Latency of an addition to memory (store, forward, load) over that of an addition to a register."""


def _analyze(context: DiagnosticContext) -> Match | None:
    lanes = context.cpu.lanes
    loops = hot_loops(context, _has_chain)
    if loops is None:
        return None
    return Match(
        evidence=(
            percent("time in loops with a serial sum", loops.share, MIN_SHARE),
            Evidence("independent sums in the hot loop", max(1, loops.worst.accumulators), MAX_CHAINS),
            Evidence("dependent additions per iteration", max(1, loops.worst.chain)),
        ),
        cause="the loop adds to one floating-point variable: each addition waits for the previous one, and "
        "without -ffast-math the compiler may not reorder them into vectors",
        saved_share=loops.weighted(lambda loop: 1 - 1 / (lanes * (_THROUGH_MEMORY if loop.carried else 1))),
        basis=f"{loops.share:.0%} of the time is in such loops; a vector of partial sums does {lanes} "
        "additions in the time of one",
        where=loops.worst.where,
        advice=(
            f"keep {4 * lanes} partial sums (float part[{4 * lanes}]) in an inner loop of that length; add "
            "them up at the end",
            "put #pragma omp simd reduction(+ : sum) over the loop",
            "compile with -ffast-math, or -fassociative-math -fno-signed-zeros -fno-trapping-math, where "
            "that is harmless",
        ),
    )


def _has_chain(loop: CpuLoop) -> bool:
    locks = any(LOCKS.search(name) for name in loop.calls)  # then threads wait for each other
    other_cause = loop.strided or loop.math or loop.count("atomic") or loop.bits or locks
    serial = loop.chain > 0 and loop.accumulators <= MAX_CHAINS
    if folds_in_order(loop):
        return not (loop.strided or loop.math)
    return (serial or loop.carried > 0) and not other_cause and not own_calls(loop)


DIAGNOSTIC = Diagnostic(
    name="cpu_dependency_chain",
    level="instruction",
    target="cpu",
    analyze=_analyze,
    trigger="a tenth of the time in loops that accumulate, in scalar code, into at most two registers, or "
    "that add the lanes of a vector one after the other",
    remedy="partial sums, by hand or with #pragma omp simd reduction",
    gain_basis="the loops' time shrinks to 1 / (floats per vector)",
    claims=(
        "dependency_chains",
        "scalar_code",
    ),
)
