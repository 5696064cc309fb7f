"""A sum in one variable: every addition waits for the one before, and the compiler must keep their order."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
_FEW = 2
"""Sums side by side. An addition takes 2 to 4 cycles and two can start in each: fewer than four sums leave the units idle."""


def look(scene: DiagnosticContext) -> Match | None:
    lanes = scene.cpu["vector_bits"] // 32
    hot = [
        loop
        for loop in scene.cpu["loops"]
        if loop["chain"]
        and loop["accumulators"] <= _FEW
        and not loop["strided"]
        and not loop["math"]
        and not loop["mix"].get("atomic")
    ]
    share = sum(loop["share"] for loop in hot)
    if share < _LEAST:
        return None
    worst = hot[0]
    return Match(
        evidence=(
            Evidence("time in loops with a sum that waits for itself", share, _LEAST, "of 1"),
            Evidence("sums side by side in the hot loop", worst["accumulators"], _FEW),
            Evidence("additions in a row to one of them, each turn", worst["chain"]),
        ),
        cause="the loop adds to one floating-point variable: each addition waits for the one before, and without "
        "-ffast-math the compiler may not reorder them into vectors",
        advice=(
            f"keep {4 * lanes} partial sums (float part[{4 * lanes}]) in an inner loop of that many turns; add them up at the end",
            "#pragma omp simd reduction(+ : sum) over the loop lets the compiler do the same",
            "-ffast-math, or -fassociative-math -fno-signed-zeros -fno-trapping-math, where its other effects do no harm",
        ),
        saved_share=share * (1 - 1 / lanes),
        basis=f"{share:.0%} of the time is in such loops; a vector of partial sums does {lanes} additions in the time of one",
        where=worst["where"],
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_dependency_chain",
    level="instruction",
    target="cpu",
    analyze=look,
    trigger="a tenth of the time in loops that add, in scalar code, to at most two registers that they also read",
    remedy="partial sums, by hand or by #pragma omp simd reduction",
    gain_basis="the loops' share of the time shrinks by the number of floats in a vector",
)
