"""Several loops over each row, one after the other: while the later ones work on what is in cache, memory rests."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.records import Bound, Evidence

_LEAST = 0.08
"""Share of the time from which a loop counts as a pass."""
_LOOSE = 1.3
"""Times the floor: closer, memory does not rest."""
_SAVED = 1 / 3
"""Of the time beside the longest pass. Three passes over the rows of two layer norms made two, and the next row fetched meanwhile,
gave 1.21x and 1.25x on two ARM cores, where this says 1.21x and 1.18x; the fetching alone 1.06x to 1.17x, where it says 1.13x."""


def look(scene: DiagnosticContext) -> Match | None:
    if not scene.cpu["sampled"]:
        raise MissingData("samples of where time goes in native code")
    if scene.headroom < _LOOSE or scene.bound not in (Bound.MEMORY, Bound.MIXED):
        return None
    passes = max(_rows(scene.cpu), key=lambda found: sum(_shares(found)), default=[])
    fetched = "prefetch" in scene.profile.source
    if len(passes) < (3 if fetched else 2):
        return None
    shares = _shares(passes)
    beside = sum(shares) - max(shares)
    work, bandwidth = scene.profile.work, scene.profile.ceilings["bandwidth"] / 1e9
    reached = 1e-6 * (work["read_bytes"] + work["written_bytes"]) / scene.profile.time_ms
    places = ", ".join(dict.fromkeys(loop["where"] for loop in passes if loop["where"]))
    ahead = "fetch the next row (__builtin_prefetch, line by line) in the last loop over this one, so that memory does not rest"
    return Match(
        evidence=(
            Evidence("vector loops over each row", len(passes), 2 if fetched else 1),
            Evidence("time in all of them but the longest", beside, unit="of 1"),
            Evidence("bytes that must move, over the time", reached, bandwidth / _LOOSE, "GB/s"),
        ),
        cause=f"{len(passes)} loops, one after the other, go over each row ({places}): all but the first find it in cache, and "
        f"memory rests meanwhile; the call takes {scene.headroom:.1f} times what its bytes need",
        advice=(
            "join loops: sum up values and their squares (about a number near the mean) in one, instead of the mean first",
            *(() if fetched else (ahead,)),
            "keep what several of them compute in a buffer of the row's length",
        ),
        saved_share=_SAVED * beside,
        basis=f"a third of the {beside:.0%} of the time that lies beside the longest loop, as measured on layer norms",
        where=passes[0]["where"],
    )


def _rows(cpu: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Vector loops that share the loop around them."""
    hot = [
        loop
        for loop in cpu["loops"]
        if loop["share"] >= _LEAST and loop["bits"] and loop["streamed"] and not loop["strided"]
    ]
    around = {id(loop): _around(cpu, loop) for loop in hot}
    inside = sorted(
        (loop for loop in hot if around[id(loop)]), key=lambda loop: (around[id(loop)], loop["begin"])
    )
    return [list(group) for _, group in groupby(inside, key=lambda loop: around[id(loop)])]


def _around(cpu: dict[str, Any], loop: dict[str, Any]) -> tuple[str, str, int, int] | None:
    """The next loop outside this one."""
    file, name, begin, end = loop["file"], loop["function"], loop["begin"], loop["end"]
    loops = [
        outer
        for f in cpu["static"]["functions"]
        if (f["file"], f["name"]) == (file, name)
        for outer in f["loops"]
    ]
    spans = [(o["begin"], o["end"]) for o in loops if o["begin"] <= begin and end <= o["end"]]
    outer = sorted((last - first, first, last) for first, last in spans if (first, last) != (begin, end))
    return (file, name, *outer[0][1:]) if outer else None


def _shares(passes: list[dict[str, Any]]) -> list[float]:
    return [loop["share"] for loop in passes]


DIAGNOSTIC = Diagnostic(
    name="cpu_repeated_passes",
    level="kernel",
    target="cpu",
    analyze=look,
    trigger="two or more vector loops inside the same loop (three where the source fetches ahead) with at least 8 % of the time "
    "each, in a call over 1.3 times its floor whose class is memory or mixed",
    remedy="fewer loops over a row, and the next row fetched during the last of them",
    gain_basis="a third of the time beside the longest of the loops goes",
    bounds=frozenset({Bound.MEMORY, Bound.MIXED}),
)
