"""Floating-point loops that work on one number at a time although the machine has vectors."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
"""Share of the time from which such loops are worth a word."""


def look(scene: DiagnosticContext) -> Match | None:
    lanes = scene.cpu["vector_bits"] // 32
    hot = [
        loop
        for loop in scene.cpu["loops"]
        if loop["mix"].get("scalar_float") and not loop["bits"] and not _another_cause(loop)
    ]
    share = sum(loop["share"] for loop in hot)
    if share < _LEAST:
        return None
    worst = hot[0]
    reasons = "; ".join(worst["reasons"])
    if worst["remainder"]:
        reasons = "its vector form exists, but turns go through the scalar rest (short rows, or pointers that overlap)"
    saved = share * (1 - 1 / lanes)
    return Match(
        evidence=(
            Evidence("time in scalar floating-point loops", share, _LEAST, "of 1"),
            Evidence("floats that one vector holds", lanes),
        ),
        cause=f"the hot loop computes one number at a time where {lanes} fit: {reasons or 'the compiler gives no reason'}",
        advice=(
            "remove what the compiler names: a way out of the loop, a branch with a store, a call, pointers without __restrict__",
            "write the choice as a select (c ? a : b) on values that are computed anyway, and check for errors after the loop",
            "put #pragma omp simd over the loop, or use vector types (__attribute__((vector_size)))",
        ),
        saved_share=saved,
        basis=f"{share:.0%} of the time is in scalar loops; {lanes} floats at once leave 1/{lanes} of it",
        where=worst["where"],
    )


def _another_cause(loop: dict[str, object]) -> bool:
    """Loops that other tools explain: their remedy comes before the vectors."""
    mix = loop["mix"]
    assert isinstance(mix, dict)
    special = (
        mix.get("integer_division") or mix.get("atomic") or 2 * mix.get("double", 0) >= mix["scalar_float"]
    )
    return bool(special or loop["updates"] or loop["chain"] or loop["strided"] or loop["math"])


DIAGNOSTIC = Diagnostic(
    name="cpu_scalar_code",
    level="instruction",
    target="cpu",
    analyze=look,
    trigger="at least a tenth of the time is in innermost loops whose floating-point arithmetic is all scalar, and no other tool "
    "(calls, divisions, sums, strides, updates in memory) explains why",
    remedy="what keeps the compiler from vector code, as it says itself, with the line",
    gain_basis="the loops' share of the time shrinks by the number of floats in a vector",
    symptom_of=("cpu_math_calls", "cpu_dependency_chain", "cpu_strided_access", "cpu_double_precision"),
)
