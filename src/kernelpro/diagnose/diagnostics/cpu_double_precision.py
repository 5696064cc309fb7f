"""Double precision by accident: a literal such as 0.5 instead of 0.5f, or a double intermediate, in a float task."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
_DENSE = 0.2
"""Share of a loop's instructions: below it a double here and there (a total, a counter) costs little."""


def look(scene: DiagnosticContext) -> Match | None:
    if scene.profile.in_double:
        return None
    hot = [
        loop
        for loop in scene.cpu["loops"]
        if _doubles(loop) >= _DENSE * loop["instructions"] and not _sums(loop)
    ]
    share = sum(loop["share"] for loop in hot)
    if share < _LEAST:
        return None
    saved = sum(loop["share"] * _avoidable(loop, scene.cpu["vector_bits"] // 32) for loop in hot)
    worst = hot[0]
    mix = worst["mix"]
    return Match(
        evidence=(
            Evidence("time in loops of double-precision arithmetic", share, _LEAST, "of 1"),
            Evidence("double-precision instructions in the hot loop", mix.get("double", 0), 0),
            Evidence("conversions between float and double in it", mix.get("convert", 0), 0),
        ),
        cause="the loop computes in double although the task is float: half the numbers in a vector, and conversions on both ends",
        advice=(
            "write literals with an f (0.5f), call std:: functions on floats, declare intermediates float",
            "where digits matter, keep a double total outside the innermost loop, over partial sums in float",
        ),
        saved_share=saved,
        basis=f"{share:.0%} of the time is in such loops; float halves their arithmetic and drops the conversions",
        where=worst["where"],
    )


def _doubles(loop: dict[str, Any]) -> int:
    return int(loop["mix"].get("double", 0) + loop["mix"].get("convert", 0))


def _sums(loop: dict[str, Any]) -> bool:
    """Totals in double are good practice."""
    return bool(loop["updates"] or loop["mix"].get("atomic"))


def _avoidable(loop: dict[str, Any], lanes: int) -> float:
    if not loop["bits"] and not loop["chain"]:
        return 1 - 1 / lanes
    mix = loop["mix"]
    converts = mix.get("convert", 0)
    arithmetic = loop["instructions"] - converts - mix.get("load", 0) - mix.get("store", 0)
    return float((converts + arithmetic / 2) / loop["instructions"])


DIAGNOSTIC = Diagnostic(
    name="cpu_double_precision",
    level="instruction",
    target="cpu",
    analyze=look,
    trigger="loops with at least a tenth of the time, a fifth of whose instructions compute in double or convert, "
    "in a task without float64",
    remedy="float literals, float functions, float intermediates",
    gain_basis="half of the loop's arithmetic and all its conversions go",
)
