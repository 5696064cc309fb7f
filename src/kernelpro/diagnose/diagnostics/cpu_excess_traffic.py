"""Several passes over the data where one would do: what one pass writes, the next reads again from memory."""

from __future__ import annotations

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.kernel_names import plain_name
from kernelpro.records import Bound, Evidence

_LEAST = 0.08
"""Share of the time from which a loop counts as a pass."""
_LOOSE = 1.3
"""Times the floor: closer, passes cannot be going through memory."""
_HOST = 0.15


def look(scene: DiagnosticContext) -> Match | None:
    if not scene.cpu["sampled"]:
        raise MissingData("samples of where time goes in native code")
    if (
        scene.headroom < _LOOSE or scene.bound is Bound.COMPUTE
    ):  # there, time beyond the floor is no sign of traffic
        return None
    shares = scene.cpu["shares"]
    passes = [sweep for sweep in scene.cpu["sweeps"] if sweep["share"] >= _LEAST]
    weights = [sweep["share"] for sweep in passes]
    library = shares["torch"] + shares["memory"]
    if library >= _LEAST and shares["host"] < _HOST:
        weights.append(library)
    if len(weights) < 2:
        return None
    places = ", ".join(dict.fromkeys(sweep["where"] or plain_name(sweep["function"]) for sweep in passes))
    return Match(
        evidence=(
            Evidence("passes over the data", len(weights), 1),
            Evidence("time of the longest of them", max(weights), unit="of 1"),
            Evidence("time against the fewest bytes over the bandwidth", scene.headroom, _LOOSE, "times"),
        ),
        cause=f"{len(weights)} loops one after the other walk over the data ({places}"
        + (f"; torch's operators and copies take {library:.0%}" if library >= _LEAST else "")
        + "): intermediates travel through memory between them",
        advice=(
            "fuse: do all steps on a row, or on a block that fits the L1 cache, before going to the next",
            "keep intermediates in registers or in a small buffer of each thread",
        ),
        saved_share=1 - max(weights),
        basis=f"one fused pass costs about as much as the longest of the {len(weights)}, {max(weights):.0%} of the time",
        where=passes[0]["where"] if passes else "",
    )


DIAGNOSTIC = Diagnostic(
    name="cpu_excess_traffic",
    level="kernel",
    target="cpu",
    analyze=look,
    trigger="two or more separate outermost loops (or torch's operators) with at least 8 % of the time each, "
    "and a call over 1.3 times its floor, unless arithmetic bounds the task",
    remedy="fuse the passes; work on rows or blocks that stay in cache",
    gain_basis="the longest pass remains, the others go",
)
