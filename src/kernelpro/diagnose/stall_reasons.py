"""Warp stall reasons of Nsight Compute: what a warp waits for, and what helps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StallReason:
    """A reason with a known remedy."""

    description: str
    avoidable: float
    """Share of these stalls that the remedy removes: prefetching hides most of a load's latency, never all
    of it."""
    advice: tuple[str, ...]


REASONS = {
    "long_scoreboard": StallReason(
        "a global or local memory load (L1 miss)",
        0.6,
        (
            "issue loads earlier: unroll to keep several in flight, prefetch into registers or with cp.async",
            "load wider vectors, so that each wait brings more bytes",
            "raise occupancy: fewer registers per thread or less shared memory per block",
        ),
    ),
    "short_scoreboard": StallReason(
        "shared memory, a special function or a conversion",
        0.5,
        (
            "read shared memory in wider vectors, into registers before the loop",
            "use fewer steps per warp reduction, and interleave independent rows",
            "use cheaper special functions (__expf, rsqrtf) where the tolerance allows",
        ),
    ),
    "mio_throttle": StallReason(
        "the full MIO queue (shared memory, shuffles, special functions)",
        0.5,
        (
            "use fewer, wider shared memory accesses",
            "replace shuffles by work that a thread does on its own data",
            "interleave arithmetic",
        ),
    ),
    "lg_throttle": StallReason(
        "the full local/global memory queue",
        0.6,
        (
            "use fewer, wider loads and stores (float4)",
            "combine neighboring accesses of a thread",
            "remove register spills",
        ),
    ),
    "math_pipe_throttle": StallReason(
        "a saturated math pipe",
        0.3,
        (
            "interleave instructions of different pipes",
            "balance the load over the pipes, or use tensor cores where the precision allows",
        ),
    ),
    "wait": StallReason(
        "fixed latencies between dependent instructions",
        0.4,
        (
            "give each thread several independent dependency chains (unroll, more accumulators)",
            "raise occupancy",
        ),
    ),
    "no_instruction": StallReason(
        "instruction fetch: an instruction cache miss or a jump",
        0.6,
        (
            "unroll less, so that the hot loop fits the instruction cache",
            "avoid large inlined functions in rare branches",
        ),
    ),
    "drain": StallReason(
        "outstanding stores at the end of a block",
        0.5,
        ("make blocks do more work and store earlier", "store full, contiguous cache lines"),
    ),
}

DESCRIPTIONS = {name: reason.description for name, reason in REASONS.items()} | {
    "barrier": "other warps of the block at a barrier",
    "membar": "a memory fence",
    "gmma": "the tensor cores (wgmma operands)",
    "not_selected": "the scheduler: eligible, but another warp issued",
    "selected": "nothing: it issued",
    "branch_resolving": "a branch target",
    "dispatch_stall": "the dispatcher",
    "imc_miss": "a constant cache miss",
    "sleeping": "the end of a nanosleep",
    "tex_throttle": "the full texture queue",
    "misc": "a reason without a name",
}
"""What a warp waits for, for every stall reason of ncu."""
