"""Registers that ran out: values are kept in local memory, which is DRAM behind the caches."""

from __future__ import annotations

import contextlib
import math

from kernelpro.diagnose import occupancy
from kernelpro.diagnose.counters import ATTAINABLE, MEMORY_THROUGHPUT, has_counters
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.pipes import HotCode, dram_bytes_per_clock, dram_clocks, hot_code
from kernelpro.diagnose.traffic import required_bytes
from kernelpro.records import Evidence

REQUESTS = {
    space: tuple(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{operation}.sum" for operation in ("ld", "st"))
    for space in ("local", "global")
}
_NOTICEABLE = 0.02
"""Share of local accesses in the hot code below which they are the rarely taken path of a library function."""


def look(scene: DiagnosticContext) -> Match | None:
    hot = hot_code(scene)
    local = hot.count("local_load", "local_store")
    spilled = float(scene.code.get("spill_stores", 0) + scene.code.get("spill_loads", 0))
    requests = {space: sum(scene.metric_or_none(name) or 0.0 for name in names) for space, names in REQUESTS.items()}
    if local / hot.instructions < _NOTICEABLE and not spilled and not requests["local"]:
        return None
    share, how = _by_the_code(scene, hot)
    if has_counters(scene) and scene.metric_or_none(REQUESTS["local"][0]) is not None:
        part = requests["local"] / max(1.0, requests["local"] + requests["global"])
        bound = min(1.0, scene.metric(MEMORY_THROUGHPUT) / 100 / ATTAINABLE)
        share = part * bound
        how = f"{part:.0%} of the memory requests are local, and memory sets {bound:.0%} of the time"
    registers = scene.kernel.registers or int(scene.code.get("registers", 0))
    evidence = [
        Evidence("local accesses in the hot code", local, 0),
        Evidence("registers a thread", registers, 255),
    ]
    if spilled:
        evidence.append(Evidence("spilled bytes a thread", spilled, 0, "bytes"))
    if requests["local"]:
        evidence.append(Evidence("requests to local memory", requests["local"], 0))
    if spilled or "spill_stores" not in scene.code:
        cause = f"values do not fit the {registers} registers of a thread and go through local memory"
        advice: tuple[str, ...] = (
            "raise the limit: drop or relax __launch_bounds__ and maxrregcount, or use more warps for a tile (num_warps)",
            "hold less at a time: smaller tiles for a thread, shorter live ranges, less unrolling",
            "keep what is shared by the block in shared memory",
        )
    else:
        cause = (
            "an array is indexed at run time, so it lives in local memory "
            f"({scene.code.get('stack', 0)} bytes a thread) instead of registers"
        )
        advice = (
            "make all indices known at compile time: full #pragma unroll, constant bounds, templates",
            "keep a table that must be indexed at run time in shared memory",
        )
    where = scene.code.get("where", {})
    return Match(
        tuple(evidence), cause, advice, share, how, where.get("local_load") or where.get("local_store", "")
    )


def _by_the_code(scene: DiagnosticContext, hot: HotCode) -> tuple[float, str]:
    """What the hot code needs with and without its local accesses, which go as far down as they do not fit."""
    kinds = ("local_load", "local_store")
    threads = 1024.0
    with contextlib.suppress(MissingData):  # half of an SM's threads where the launch is not known
        holds = occupancy.kernel_occupancy(scene)
        threads = 32.0 * holds.blocks * holds.warps_in_block
    footprint = threads * float(scene.code.get("stack", 0))
    rate, level = math.inf, "L1"
    if footprint * scene.device.get("sms", 132) > scene.device.get("l2_bytes", 60e6):
        rate, level = dram_bytes_per_clock(scene), "DRAM"
    elif (
        footprint
        > scene.device.get("shared_per_sm", 233472) - scene.kernel.static_shared - scene.kernel.dynamic_shared
    ):
        rate, level = 2 * dram_bytes_per_clock(scene), "L2"
    memory = dram_clocks(scene, hot)
    # L1 writes through: what a thread spills reaches L2, and DRAM where the kernel's own data streams through L2.
    streams = required_bytes(scene) > scene.device.get("l2_bytes", 60e6)
    through = (1 if streams else 2) * dram_bytes_per_clock(scene)
    now = max(
        hot.clocks(), memory + hot.bytes_moved("local_load") / rate + hot.bytes_moved("local_store") / min(rate, through)
    )
    then = max(hot.clocks(gone={kind: hot.count(kind) for kind in kinds}), memory)
    how = (
        f"{footprint / 1024:.0f} KiB of local memory an SM are read back from {level}, its stores go on to "
        f"{'DRAM' if streams else 'L2'}; a pass takes {now:.1f} clocks a thread, {then:.1f} without"
    )
    return 1 - then / now, how


DIAGNOSTIC = Diagnostic(
    name="spills",
    level="instruction",
    target="cuda",
    analyze=look,
    trigger=(
        f"ptxas reports spills, or at least {_NOTICEABLE:.0%} of the hot "
        "instructions access local memory, or the counters see such requests"
    ),
    remedy="more registers for a thread, smaller tiles, indices known at compile time",
    gain_basis=(
        "share of local requests times how far memory sets the time; without counters, "
        "the code with and without them, at the rate of the level they spill to"
    ),
    metrics=(*REQUESTS["local"], *REQUESTS["global"]),
)
