"""Scalar functions of the C library (expf, tanhf, powf, ...) called for every element."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
"""Share of the time from which calls are worth a word."""


def look(scene: DiagnosticContext) -> Match | None:
    lanes = scene.cpu["vector_bits"] // 32
    hot = [loop for loop in scene.cpu["loops"] if loop["math"] and loop["share"] > 0]
    if not hot:
        return None
    inside = scene.cpu["shares"]["math"]
    share = min(1.0, inside + sum(loop["share"] for loop in hot))
    if share < _LEAST:
        return None
    names = sorted({name for loop in hot for name in loop["math"]})
    return Match(
        evidence=(
            Evidence("time in loops that call libm, and in libm", share, _LEAST, "of 1"),
            Evidence("time in libm alone", inside, unit="of 1"),
        ),
        cause=f"every element calls {', '.join(names)}: one number at a time, and the call keeps the loop from vector code",
        advice=(
            f"write {names[0]} as an inline polynomial without branches, so that the compiler makes vectors of it and of the loop",
            "fewer calls: one exponential can serve sigmoid, tanh and softmax; hoist what does not change out of the loop",
            "on x86-64 with glibc, -ffast-math lets g++ use libmvec's vector versions (to 4 units in the last place)",
        ),
        saved_share=share * (1 - 1 / lanes),
        basis=f"{share:.0%} of the time goes with the calls; a vector form does {lanes} floats in about the time of one",
        where=hot[0]["where"],
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_math_calls",
    level="instruction",
    target="cpu",
    analyze=look,
    trigger="a hot loop calls a scalar function of libm, and calls and loop take at least a tenth of the time",
    remedy="an inline polynomial that becomes vector code, or fewer calls",
    gain_basis="the time of the calls and of their loops shrinks by the number of floats in a vector",
)
