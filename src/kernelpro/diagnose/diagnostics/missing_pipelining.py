"""Tiles that are waited for as soon as they are asked for: memory rests while the SM computes, and the SM while memory works."""

from __future__ import annotations

import re

from kernelpro.diagnose.counters import has_counters, latency_headroom, stall_share
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match
from kernelpro.diagnose.pipes import hot_code
from kernelpro.diagnose.tile_loops import METRICS, exposed_latency, tile_loop
from kernelpro.records import Evidence

_STAGES = re.compile(r"num_stages\D{1,3}(\d+)")


def look(scene: DiagnosticContext) -> Match | None:
    configuration = str(scene.profile.compiler.get("configuration", {}).get(scene.kernel.name, ""))
    stages = int(match[1]) if (match := _STAGES.search(configuration)) else None
    asynchronous = tile_loop(scene, "async_copy")
    loop = asynchronous or (tile_loop(scene, "global_load", "shared_store") if stages == 1 else None)
    if loop is None:
        return _streaming(scene)
    barriers = loop["mix"]["barrier"]
    if stages != 1 and (stages is not None or barriers < 2):
        return None  # with two buffers or more, one barrier a step suffices
    share, how = exposed_latency(scene, loop)
    if has_counters(scene) and share < 0.03:
        return None
    evidence = [Evidence("barriers in a step of the loop", barriers, 1)]
    if stages is not None:
        evidence.append(Evidence("stages of the pipeline", stages, 2))
    copies = (
        "asynchronous copies are waited for in the step that starts them"
        if asynchronous
        else "tiles are loaded and used in the same step"
    )
    return Match(
        tuple(evidence),
        f"{copies}: there is one buffer, and loading and computing take turns",
        (
            (
                "keep 2 to 4 tiles in shared memory and start the copy of a later one "
                "before computing (cp.async with wait_group N-1, TMA with mbarriers)"
            ),
            "in Triton raise num_stages to 3 or 4",
            "let a producer warp load and the others compute",
        ),
        share,
        how,
        str(loop.get("where", "")),
    )


def _streaming(scene: DiagnosticContext) -> Match | None:
    """A loop that loads and uses at once, without shared memory: only counters tell whether other warps hide that."""
    hot = hot_code(scene)
    loads = hot.count("global_load")
    if (
        not has_counters(scene)
        or not hot.is_loop
        or not 0 < loads <= 2
        or hot.count("barrier", "shared_load", "async_copy", "tma", "atomic", "local_load")
    ):
        return None
    if any(scene.metric_or_none(name) is None for name in METRICS):
        return None
    waiting = stall_share(scene, "long_scoreboard")
    if waiting < 0.5 or latency_headroom(scene) < 0.15:
        return None
    share = min(waiting, latency_headroom(scene), 1 - loads / 4)
    return Match(
        (
            Evidence("warps' time spent waiting for loads", round(100 * waiting), 50, "%"),
            Evidence("loads in flight for a thread", loads, 4),
        ),
        f"each pass of the loop loads {loads:.0f} value{'s' if loads > 1 else ''} and uses what it loads at once: nothing of a "
        "later pass is in flight",
        (
            "unroll by 4 and load all values before using the first",
            "load the next pass's values into registers before computing with the current ones",
            "put more of the rows or columns on separate warps",
        ),
        share,
        (
            f"warps wait {waiting:.0%} of their time for loads; four in flight "
            f"instead of {loads:.0f}, and room for {latency_headroom(scene):.0%} on the busiest unit"
        ),
        scene.code.get("where", {}).get("global_load", ""),
    )


DIAGNOSTIC = Diagnostic(
    name="missing_pipelining",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=(
        "one stage (num_stages 1, or asynchronous copies with two barriers a step) in a loop over tiles; "
        "or, by counters, a loop with at most 2 loads in flight and half of the time spent waiting for them"
    ),
    remedy="several stages: start the copy of a later tile before computing on this one",
    gain_basis=(
        "time spent waiting for tiles as far as the units have room; without counters, latency of a tile against the work of a step"
    ),
    metrics=METRICS,
    symptom_of=(
        "narrow_access",
        "uncoalesced_access",
        "sector_waste",
        "excess_traffic",
        "tensor_cores_idle",
        "missing_reuse",
        "low_parallelism",
        "spills",
        "tail_effect",
    ),
)
