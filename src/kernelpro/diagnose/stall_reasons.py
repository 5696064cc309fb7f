"""Reasons for which warps wait, in words, with what helps against each."""

from __future__ import annotations

from dataclasses import dataclass


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
            "put more warps on an SM: fewer registers or less shared memory a block",
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
        (
            "give each thread several independent chains (unroll, more accumulators)",
            "put more warps on an SM",
        ),
    ),
    "no_instruction": Reason(
        "instructions not yet fetched: code larger than the instruction cache, or jumps",
        0.6,
        (
            "unroll less, so that the hot loop fits the instruction cache",
            "avoid large inlined functions in rare branches",
        ),
    ),
    "drain": Reason(
        "stores to be finished before a block can end",
        0.5,
        ("let blocks live longer and store earlier", "store in full, contiguous lines"),
    ),
}

WORDS = {reason: known.words for reason, known in REASONS.items()} | {
    "barrier": "other warps of the block at a barrier",
    "membar": "a memory fence",
    "gmma": "the matrix unit (wgmma) to take or to give back operands",
    "not_selected": "its turn: it was ready, and another warp issued",
    "selected": "nothing: it issued",
    "branch_resolving": "the target of a branch",
    "dispatch_stall": "the dispatcher, which held the instruction back",
    "imc_miss": "a constant that is not in its cache",
    "sleeping": "the end of a nanosleep",
    "tex_throttle": "a full queue of texture instructions",
    "misc": "something that has no name",
}
"""What a warp waits for, of every reason that ncu knows."""
