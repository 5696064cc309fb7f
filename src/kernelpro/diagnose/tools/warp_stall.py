"""Why warps wait, where no unit is full: the commonest reason, in words. Mostly a symptom of what other tools name."""

from __future__ import annotations

from dataclasses import dataclass

from kernelpro.diagnose.counters import RUNNING, hot_line, room, stalled, stalls
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.records import Evidence

SHARE = 0.3
"""Of the warps' time, for a reason to be worth naming."""
LEAST = 0.04


@dataclass(frozen=True)
class Reason:
    words: str
    avoidable: float
    """Share of this waiting that the remedy takes away: prefetching hides most of a load's latency, nothing hides all of it."""
    advice: tuple[str, ...]


REASONS = {
    "long_scoreboard": Reason(
        "a load from global or local memory (L1 missed)",
        0.6,
        (
            "issue loads earlier: unroll so that several are in flight, prefetch the next step into registers or by cp.async",
            "load wider vectors, so that each wait brings more bytes",
            "more warps a SM: fewer registers or less shared memory a block",
        ),
    ),
    "short_scoreboard": Reason(
        "shared memory, a special function or a conversion",
        0.5,
        (
            "read shared memory in wider vectors and into registers before the loop",
            "reduce within the warp in fewer steps, interleaving independent rows",
            "use cheaper special functions (__expf, rsqrtf) where the tolerance allows it",
        ),
    ),
    "mio_throttle": Reason(
        "a full queue of shared-memory, shuffle and special-function instructions",
        0.5,
        (
            "use fewer, wider accesses to shared memory",
            "replace shuffles by work that a thread does on its own data",
            "mix in arithmetic",
        ),
    ),
    "lg_throttle": Reason(
        "a full queue of global-memory instructions",
        0.6,
        (
            "use fewer, wider loads and stores (float4)",
            "combine neighbouring accesses of a thread",
            "remove spills to local memory",
        ),
    ),
    "math_pipe_throttle": Reason(
        "an arithmetic pipe that is full for the moment",
        0.3,
        (
            "interleave instructions of different kinds",
            "spread the load over pipes, or use tensor cores where the precision allows it",
        ),
    ),
    "wait": Reason(
        "fixed latencies between dependent instructions",
        0.4,
        ("give each thread several independent chains (unroll, more accumulators)", "more warps a SM"),
    ),
    "no_instruction": Reason(
        "instructions not yet fetched: code larger than the instruction cache, or jumps",
        0.6,
        ("unroll less, so that the hot loop fits the instruction cache", "avoid large inlined functions in rare branches"),
    ),
    "drain": Reason(
        "stores to be finished before a block can end",
        0.5,
        ("let blocks live longer and store earlier", "store in full, contiguous lines"),
    ),
}


def look(scene: Scene) -> Found | None:
    shares = {name: stalled(scene, name) for name in REASONS}
    name = max(shares, key=lambda key: shares[key])
    share, reason = shares[name], REASONS[name]
    saved = min(reason.avoidable * share, room(scene))
    if share < SHARE or saved < LEAST:
        return None
    return Found(
        evidence=(
            Evidence(f"time that warps wait for {reason.words}", round(100 * share), 100 * SHARE, "%"),
            Evidence("left until a unit is full", round(100 * room(scene)), None, "%"),
        ),
        cause=f"warps spend {share:.0%} of their time waiting for {reason.words}, while no unit of the device is full",
        advice=reason.advice,
        saved=saved,
        how=f"{reason.avoidable:.0%} of this waiting can be hidden, until a unit is full",
        where=hot_line(scene.it, name),
    )


TOOL = Tool(
    name="warp_stall",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"one reason (barriers and fences have their own tools) is {SHARE:.0%} of the warps' time, and no unit is full",
    remedy="by reason: more loads in flight, wider accesses, independent chains, fewer instructions in the full queue",
    expects="Little's law: the avoidable share of the waiting (30 to 60 %, by reason), until a unit is full",
    affinity=RUNNING,
    metrics=stalls(*REASONS),
    lines=True,
    symptom_of=(
        "uncoalesced_access",
        "sector_waste",
        "excess_traffic",
        "l2_thrash",
        "bank_conflicts",
        "missing_reuse",
        "occupancy_limiter",
        "register_pressure",
        "barrier_stall",
        "divergence",
        "tail_effect",
        "low_parallelism",
        "atomics_contention",
        "narrow_access",
        "spills",
        "tensor_cores_idle",
        "slow_mma_family",
        "serialized_wgmma",
        "missing_async_copy",
        "missing_pipelining",
        "precision_conversions",
        "double_precision",
        "special_functions",
        "memory_barriers",
        "integer_arithmetic",
    ),
)
