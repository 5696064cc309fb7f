"""Divisions that need not be: by a value that stays the same, or integer divisions to find an index."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
_FLOAT_COST, _INTEGER_COST = 8.0, 16.0
"""In simple instructions: a vector division starts every 5 to 10 cycles, a 64-bit integer one every 10 to 40, at 1 or 2
instructions a cycle for the rest."""


def look(scene: DiagnosticContext) -> Match | None:
    lanes = scene.cpu["vector_bits"] // 32
    hot = [
        loop for loop in scene.cpu["loops"] if loop["fixed_divisors"] or loop["mix"].get("integer_division")
    ]
    saved = sum(loop["share"] * _avoidable(loop, lanes) for loop in hot)
    share = sum(loop["share"] for loop in hot)
    if share < _LEAST:
        return None
    worst = hot[0]
    fixed, integer = worst["fixed_divisors"], worst["mix"].get("integer_division", 0)
    kinds = [f"{fixed} by a value that does not change in the loop"] * bool(fixed) + [
        f"{integer} of integers"
    ] * bool(integer)
    return Match(
        evidence=(
            Evidence("time in loops with divisions that can be avoided", share, _LEAST, "of 1"),
            Evidence("such divisions in one turn of the hot loop", fixed + integer, 0),
            Evidence("all instructions of that turn", worst["instructions"]),
        ),
        cause=f"divisions in the hot loop: {' and '.join(kinds)}; each costs {_FLOAT_COST:g} to {_INTEGER_COST:g} simple ones",
        advice=(
            *(("compute the reciprocal once before the loop and multiply",) if fixed else ()),
            *(
                (
                    "loop over rows and columns instead of dividing a flat index; that also lets the loop become vector code",
                )
                if integer
                else ()
            ),
            "join divisions: a / b / c is a * (1 / (b * c)), with the factor computed once",
        ),
        saved_share=saved,
        basis=f"divisions are about {saved / share:.0%} of the cost of loops that take {share:.0%} of the time",
        where=worst["where"],
    )


def _avoidable(loop: dict[str, Any], lanes: int) -> float:
    """Share of the loop's cost that goes with its divisions; a scalar loop may become vector code without an integer one."""
    integer = loop["mix"].get("integer_division", 0)
    cost = _FLOAT_COST * loop["fixed_divisors"] + _INTEGER_COST * integer
    rest = float(loop["instructions"])
    left: float = rest / (rest + cost)
    return 1 - left / (lanes if integer and not loop["bits"] else 1)


DIAGNOSTIC = Diagnostic(
    name="cpu_divisions",
    level="instruction",
    target="cpu",
    analyze=look,
    trigger="loops with at least a tenth of the time divide by a register that the loop never writes, or divide integers",
    remedy="multiply by a reciprocal computed once; nested loops instead of remainders",
    gain_basis="the divisions' share of the loop, by their cost in instructions, disappears",
)
