"""Missing software pipelining: loads and computation alternate instead of overlapping."""

from __future__ import annotations

import re

from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, percent
from kernelpro.diagnose.pipes import hot_code
from kernelpro.diagnose.tile_loops import METRICS, exposed_latency, tile_loop
from kernelpro.records import Evidence

_STAGES = re.compile(r"num_stages\D{1,3}(\d+)")
_MIN_SAVED = 0.03
_STREAMING_STALLED, _STREAMING_HEADROOM, _LOADS_IN_FLIGHT = 0.5, 0.15, 4


def _analyze(context: DiagnosticContext) -> Match | None:
    configuration = context.profile.compiler.configuration.get(context.kernel.name, "")
    stages = int(match[1]) if (match := _STAGES.search(configuration)) else None
    asynchronous = tile_loop(context, "async_copy")
    loop = asynchronous or (tile_loop(context, "global_load", "shared_store") if stages == 1 else None)
    if loop is None:
        return _streaming(context)
    barriers = loop.count("barrier")
    if stages != 1 and (stages is not None or barriers < 2):
        return None  # with two buffers or more, one barrier per step is enough
    share, basis = exposed_latency(context, loop)
    if context.has_counters and share < _MIN_SAVED:
        return None
    evidence = [Evidence("barriers per step of the loop", barriers, 1)]
    if stages is not None:
        evidence.append(Evidence("pipeline stages", stages, 2))
    copies = (
        "each step waits for the asynchronous copies that it has started"
        if asynchronous
        else "each step loads the tile that it uses"
    )
    return Match(
        evidence=tuple(evidence),
        cause=f"{copies}: with one buffer, loads and computation alternate instead of overlapping",
        saved_share=share,
        basis=basis,
        where=loop.where,
    )


def _streaming(context: DiagnosticContext) -> Match | None:
    """A loop without shared memory that uses its loads at once, while other warps do not hide that."""
    hot = hot_code(context)
    loads = hot.count("global_load")
    if (
        not context.has_counters
        or not hot.is_loop
        or not 0 < loads <= 2
        or hot.count("barrier", "shared_load", "async_copy", "tma", "atomic", "local_load")
        or any(context.metric_or_none(name) is None for name in METRICS)
    ):
        return None
    stalled, headroom = context.stall_share("long_scoreboard"), context.latency_headroom
    if stalled < _STREAMING_STALLED or headroom < _STREAMING_HEADROOM:
        return None
    return Match(
        evidence=(
            percent("warp cycles stalled on loads", stalled, _STREAMING_STALLED),
            Evidence("loads in flight per thread", loads, _LOADS_IN_FLIGHT),
        ),
        cause=f"each iteration loads {loads:.0f} value{'s' if loads > 1 else ''} and uses the data at once: "
        "no load of a later iteration is in flight",
        saved_share=min(stalled, headroom, 1 - loads / _LOADS_IN_FLIGHT),
        basis=f"warps stall {stalled:.0%} of their cycles on loads; {_LOADS_IN_FLIGHT} loads in flight "
        f"instead of {loads:.0f}, and the busiest unit has {headroom:.0%} headroom",
        where=context.line_of("global_load"),
        advice=(
            "unroll by 4 and issue all loads before the first use",
            "prefetch the next iteration's values into registers before computing with the current ones",
            "distribute the rows or columns over more warps",
        ),
    )


DIAGNOSTIC = Diagnostic(
    name="missing_pipelining",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger="one stage (num_stages 1, or asynchronous copies with two barriers per step) in a loop over "
    "tiles; or, with counters, a loop with at most 2 loads in flight and warps that stall half of their "
    "cycles on them",
    remedy="several stages: start the copy of a later tile before computing on this one",
    gain_basis="stalls on tiles, limited by the headroom of the units; without counters, the latency of a "
    "tile against the work of a step",
    advice=(
        "keep 2 to 4 tiles in shared memory and start the copy of a later one before computing (cp.async "
        "with wait_group N-1, TMA with mbarriers)",
        "in Triton, raise num_stages to 3 or 4",
        "specialize warps: a producer warp loads, the others compute",
    ),
    metrics=METRICS,
    symptom_of=("narrow_access",),
    claims=(
        "waiting_for_memory",
        "waiting_at_barriers",
        "waiting_for_shared_memory",
        "waiting_for_results",
        "waiting_for_pipes",
    ),
)
