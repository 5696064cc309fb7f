"""Accesses that jump from row to row: of each cache line that travels, one number is used."""

from __future__ import annotations

from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.records import Evidence

_LEAST = 0.1
_LINE = 64
"""Bytes of a cache line."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = [
        loop
        for loop in scene.cpu["loops"]
        if loop["strided"] and loop["strided_bytes"] * 4 >= loop["streamed_bytes"]
    ]
    share = sum(loop["share"] for loop in hot)
    if share < _LEAST:
        return None
    saved = sum(loop["share"] * (1 - 1 / _waste(loop)) for loop in hot)
    worst = hot[0]
    counters = scene.cpu["dynamic"].get("counters", {})
    missed = counters["cache_misses"] * _LINE if "cache_misses" in counters else None
    work = scene.profile.work.get("read_bytes", 0) + scene.profile.work.get("written_bytes", 0)
    measured = (
        (Evidence("bytes fetched on cache misses", missed, work, "a call"),) if missed is not None else ()
    )
    return Match(
        evidence=(
            Evidence("time in loops that jump through memory", share, _LEAST, "of 1"),
            Evidence("jumping accesses in one turn of the hot loop", worst["strided"], 0),
            Evidence("consecutive accesses in it", worst["streamed"]),
            *measured,
        ),
        cause=f"each turn of the hot loop goes on to another row: it uses {worst['strided_bytes'] // worst['strided']} of the "
        f"{_LINE} bytes of a cache line, and the compiler cannot load vectors",
        advice=(
            "swap the loops, so that the innermost one walks along a row; for column sums keep a row of sums",
            "work in tiles (32 x 32) through a small buffer where one side must be transposed",
            "pack the strided operand once into a contiguous buffer where it is used many times",
        ),
        saved_share=saved,
        basis=f"{share:.0%} of the time is in these loops, which move {_waste(worst):.1f} times the bytes that they use",
        where=worst["where"],
    )


def _waste(loop: dict[str, Any]) -> float:
    used = loop["strided_bytes"] + loop["streamed_bytes"]
    return float((loop["strided"] * _LINE + loop["streamed_bytes"]) / used)


DIAGNOSTIC = Diagnostic(
    name="cpu_strided_access",
    level="kernel",
    target="cpu",
    analyze=look,
    trigger="loops with at least a tenth of the time whose address registers step by 1 KiB or more, or by a register, between "
    "accesses to single numbers, or gathers with such steps",
    remedy="loop order along rows, tiles, packing",
    gain_basis="cache lines moved (64 bytes for each jump) shrink to the bytes used",
)
