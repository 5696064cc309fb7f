"""Loads and stores of few bytes a thread: too little is in flight to fill the memory's pipeline."""

from __future__ import annotations

import math

from kernelpro.diagnose import occupancy
from kernelpro.diagnose.counters import COMPUTE, DRAM, MEMORY, ROOF, counted
from kernelpro.diagnose.pipes import GLOBAL, MATRIX, HotCode, dram_clocks, hot_code
from kernelpro.diagnose.tool import Found, Missing, Scene, Tool
from kernelpro.records import Bound, Evidence

USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
WIDEST = 128
"""Bits that one access moves at most."""
_LATENCY = 0.75e-6
"""Seconds from a load to its data at a good part of the bandwidth: 0.6 us on an idle device, 1 us near the ceiling."""
_UNMEASURED = 0.5
"""Part of the gain that is claimed where nothing was measured: warps also overlap loads of different passes."""
_HEALTHY = 0.85
"""Share of the bandwidth's ceiling from which on nothing is missing."""
_PACKED = 28
"""Bytes used of each sector of 32: with fewer the accesses are scattered, and width is not what is wrong."""


def look(scene: Scene) -> Found | None:
    hot = hot_code(scene)
    bits = {
        int(width): sum(hot.widths.get(kind, {}).get(width, 0) for kind in GLOBAL)
        for kind in GLOBAL
        for width in hot.widths.get(kind, {})
    }
    moved = sum(width * n for width, n in bits.items())
    narrow = sum(width * n for width, n in bits.items() if width < WIDEST)
    if (
        not moved
        or narrow < moved / 2
        or hot.count(*MATRIX, "tma", "async_copy", "atomic", "local_load")
        or _otherwise_limited(scene, hot)
    ):
        return None
    mean = moved / sum(bits.values())
    needed = _LATENCY * _bandwidth(scene) / scene.device.get("sms", 132)
    flying = _warps(scene) * 32 * hot.moved(*GLOBAL)
    reached = _reached(scene)
    now = min(_HEALTHY, flying / needed) if reached is None else reached
    if now >= _HEALTHY or flying >= needed:
        return None
    then = min(_HEALTHY, now * WIDEST / mean, flying * WIDEST / mean / needed)
    if then <= now:
        return None
    where = scene.code.get("where", {})
    return Found(
        (
            Evidence("bits moved by a thread's access", round(mean), WIDEST, "bits"),
            Evidence("bytes in flight on an SM", round(flying), round(needed), "bytes"),
            Evidence("share of the bandwidth's ceiling", round(100 * now), 100 * _HEALTHY, "%"),
        ),
        (
            f"a thread moves {mean:.0f} bits at a time: {flying / 1024:.0f} KiB are in "
            f"flight on an SM, and filling the bandwidth takes {needed / 1024:.0f} KiB"
        ),
        (
            (
                "move 128 bits with one access (float4, uint4, eight halves); in "
                "Triton give each thread neighbouring elements and tell divisibility"
            ),
            "let each thread do several independent accesses before it uses the first (unroll by 4)",
        ),
        (1 - now / then) * (1.0 if reached is not None else _UNMEASURED),
        (
            f"bytes in flight grow {WIDEST / mean:.1f}-fold; by Little's law "
            f"the bandwidth goes from {now:.0%} to {then:.0%} of the ceiling"
        ),
        where.get("global_load") or where.get("global_store", ""),
    )


def _bandwidth(scene: Scene) -> float:
    return float(scene.device.get("dram_bandwidth") or scene.profile.ceilings.get("bandwidth") or 4.3e12)


def _warps(scene: Scene) -> float:
    """Warps on an SM: as many as fit, and no more than the grid brings; 64 where nothing is known."""
    try:
        holds = occupancy.of(scene)
    except Missing:
        return float(scene.device.get("max_warps_per_sm", 64))
    blocks = math.prod(scene.it.grid) / scene.device["sms"] if scene.it.grid else holds.blocks
    return min(holds.blocks, blocks) * holds.warps_in_block


def _reached(scene: Scene) -> float | None:
    """Share of the bandwidth's ceiling that the kernel reaches: by the counters, else by the task's bytes where it is alone."""
    if (used := scene.get(DRAM)) is not None:
        return used / 100 / ROOF
    work = scene.profile.work
    if scene.it.microseconds > 0 and scene.it.share > 0.9:
        return (work.get("read_bytes", 0.0) + work.get("written_bytes", 0.0)) / (scene.it.microseconds * 1e-6) / _bandwidth(scene)
    return None


def _otherwise_limited(scene: Scene, hot: HotCode) -> bool:
    if scene.get(USED) is not None and scene.metric(USED) < _PACKED:
        return True
    if counted(scene):
        return scene.metric(COMPUTE) > scene.metric(MEMORY)
    return hot.clocks(float(scene.device.get("fp32_to_fp64", 2.0))) > dram_clocks(scene, hot)


TOOL = Tool(
    name="narrow_access",
    level="instruction",
    target="cuda",
    look=look,
    trigger=(
        f"most bytes move in accesses below {WIDEST} bits, fewer bytes are in flight "
        f"than latency x bandwidth, and less than {_HEALTHY:.0%} of the ceiling is reached"
    ),
    remedy="128-bit accesses, several independent ones a thread",
    expects="Little's law: bandwidth grows with the bytes in flight, up to what good kernels reach",
    affinity=frozenset({Bound.MEMORY, Bound.LATENCY, Bound.MIXED}),
    metrics=(USED,),
    symptom_of=(
        "uncoalesced_access",
        "sector_waste",
        "low_parallelism",
        "occupancy_limiter",
        "tail_effect",
        "divergence",
        "barrier_stall",
        "bank_conflicts",
        "spills",
        "memory_barriers",
        "atomics_contention",
        "double_precision",
        "integer_arithmetic",
        "special_functions",
    ),
)
