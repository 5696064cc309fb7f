"""Register spills and local arrays: values live in local memory, which is DRAM behind the caches."""

from __future__ import annotations

import contextlib
import math

from kernelpro.diagnose.account import TRAFFIC_PARTS
from kernelpro.diagnose.counters import ATTAINABLE, MEMORY_THROUGHPUT
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.hot_code import HotCode
from kernelpro.diagnose.occupancy import kernel_occupancy, registers_per_thread, shared_bytes
from kernelpro.diagnose.pipes import dram_bytes_per_clock, dram_clocks, hot_code
from kernelpro.diagnose.traffic import required_bytes
from kernelpro.records import Evidence, InstructionKind

REQUESTS = {
    space: tuple(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{operation}.sum" for operation in ("ld", "st"))
    for space in ("local", "global")
}
MIN_SHARE = 0.02
"""Share of the hot code. With less, local accesses belong to the rarely taken path of a library function."""
_LOCAL: tuple[InstructionKind, ...] = ("local_load", "local_store")
_SPILL_ADVICE = (
    "raise the register limit: drop or relax __launch_bounds__ and maxrregcount, or use more warps per tile "
    "(num_warps)",
    "keep fewer values live: smaller register tiles, shorter live ranges, less unrolling",
    "keep data that the block shares in shared memory",
)
_ARRAY_ADVICE = (
    "make all indices compile-time constants: full #pragma unroll, constant bounds, templates",
    "keep a table that must be indexed at run time in shared memory",
)


def _analyze(context: DiagnosticContext) -> Match | None:
    hot, code = hot_code(context), context.code
    requests = {
        space: sum(context.metric_or_none(name) or 0.0 for name in names) for space, names in REQUESTS.items()
    }
    if hot.share(*_LOCAL) < MIN_SHARE and not code.spilled_bytes and not requests["local"]:
        return None
    share, basis = _from_code(context, hot)
    if context.has_counters and context.metric_or_none(REQUESTS["local"][0]) is not None:
        local = requests["local"] / max(1.0, sum(requests.values()))
        memory = min(1.0, context.metric(MEMORY_THROUGHPUT) / 100 / ATTAINABLE)
        share = local * memory
        basis = f"{local:.0%} of the memory requests are local, and memory takes {memory:.0%} of the time"
    registers = registers_per_thread(context.kernel)
    evidence = [
        Evidence("local memory accesses in the hot code", hot.count(*_LOCAL), 0),
        Evidence("registers per thread", registers, 255),
    ]
    if code.spilled_bytes:
        evidence.append(Evidence("spilled bytes per thread", float(code.spilled_bytes), 0, "bytes"))
    if requests["local"]:
        evidence.append(Evidence("local memory requests", requests["local"], 0))
    spills = code.spilled_bytes > 0 or code.spill_stores is None
    return Match(
        evidence=tuple(evidence),
        cause=f"values do not fit the {registers} registers of a thread and spill to local memory"
        if spills
        else f"an array with run-time indices lives in local memory ({code.stack} bytes per thread) instead "
        "of registers",
        saved_share=share,
        basis=basis,
        where=context.line_of(*_LOCAL),
        advice=_SPILL_ADVICE if spills else _ARRAY_ADVICE,
    )


def _from_code(context: DiagnosticContext, hot: HotCode) -> tuple[float, str]:
    """Time of the hot code with and without local accesses, at the rate of the level that holds them."""
    device = context.device
    threads = 1024.0
    with contextlib.suppress(MissingData):  # half of an SM's threads where the launch is unknown
        occupancy = kernel_occupancy(context)
        threads = 32.0 * occupancy.blocks * occupancy.warps_per_block
    footprint = threads * context.code.stack
    l2_bytes = device.l2_bytes or 60e6
    rate, level = math.inf, "L1"
    if footprint * (device.sms or 132) > l2_bytes:
        rate, level = dram_bytes_per_clock(context), "DRAM"
    elif footprint > (device.shared_per_sm or 233472) - shared_bytes(context.kernel):
        rate, level = 2 * dram_bytes_per_clock(context), "L2"
    memory = dram_clocks(context, hot)
    # L1 writes through: spills reach L2, and DRAM where the kernel's own data streams through L2.
    streams = required_bytes(context) > l2_bytes
    store_rate = min(rate, (1 if streams else 2) * dram_bytes_per_clock(context))
    local = hot.bytes_moved("local_load") / rate + hot.bytes_moved("local_store") / store_rate
    now = max(hot.clocks(), memory + local)
    after = max(hot.clocks(removed={kind: hot.count(kind) for kind in _LOCAL}), memory)
    basis = (
        f"{footprint / 1024:.0f} KiB of local memory per SM: loads come from {level}, stores go to "
        f"{'DRAM' if streams else 'L2'}; a pass takes {now:.1f} clocks per thread, {after:.1f} without spills"
    )
    return 1 - after / now, basis


DIAGNOSTIC = Diagnostic(
    name="spills",
    level="instruction",
    target="cuda",
    analyze=_analyze,
    trigger=f"ptxas reports spills, or at least {MIN_SHARE:.0%} of the hot instructions access local memory, "
    "or counters show local memory requests",
    remedy="more registers per thread, smaller tiles, compile-time indices",
    gain_basis="share of local requests times the share of the time that memory takes; without counters, the "
    "time of the hot code with and without local accesses, at the rate of the memory level that holds them",
    metrics=(*REQUESTS["local"], *REQUESTS["global"]),
    claims=("spills", *TRAFFIC_PARTS),
)
