"""The time account of a call on a GPU.

A call consists of kernels, copies, idle gaps and host time. The time of each kernel is divided in steps; each
step adds only the time beyond that of the steps before it:

 1. the kernel's share of the floor;
 2. DRAM: the time of the bytes that it really moved;
 3. on-chip memory (L1, L2, shared memory), and the SM's pipes and issue slots: their measured utilization
    over
    the share of the peak that good kernels reach (`attainable`); time that both need is split between them;
 4. idle SMs;
 5. the rest: warps wait, divided by stall reason.

The parts of a kernel therefore add up to its time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from kernelpro.diagnose.counters import (
    DRAM_READ,
    DRAM_THROUGHPUT,
    DRAM_WRITTEN,
    ISSUE_ACTIVE,
    LOADED_BYTES_USED,
    MEMORY_THROUGHPUT,
    SECTOR,
    SM_THROUGHPUT,
    STORED_BYTES_USED,
    TENSOR,
    XU,
    stall_metric,
)
from kernelpro.diagnose.hot_code import MATRIX, hot_code_of
from kernelpro.records import InstructionKind, Kernel, PartKind, Profile

Parts = defaultdict[PartKind, float]
"""Milliseconds, or shares, by part."""

WAITING: dict[PartKind, tuple[str, ...]] = {
    "waiting_for_memory": ("long_scoreboard",),
    "waiting_for_memory_queue": ("lg_throttle",),
    "waiting_for_shared_memory": ("short_scoreboard", "mio_throttle"),
    "waiting_at_barriers": ("barrier",),
    "waiting_at_fences": ("membar",),
    "waiting_for_pipes": ("math_pipe_throttle",),
    "waiting_for_results": ("wait",),
    "waiting_for_instructions": ("no_instruction",),
    "waiting_for_stores": ("drain",),
}
"""Stall reasons by part."""
INSTRUCTIONS: dict[PartKind, tuple[InstructionKind, ...]] = {
    "integer_instructions": ("alu", "constant"),
    "conversions": ("convert",),
    "special_functions": ("special",),
    "arithmetic": ("fma32", "half"),
    "double_precision": ("fp64",),
    "matrix_instructions": MATRIX,
    "control_flow": ("branch", "call"),
    "synchronization": ("barrier", "mbarrier", "membar"),
    "exchange": ("shuffle", "shared_load", "shared_store", "shared_atomic"),
    "memory_instructions": ("global_load", "global_store", "async_copy", "tma"),
    "atomics": ("atomic",),
    "spills": ("local_load", "local_store"),
}
"""Kinds of instructions by part."""
_PART_OF_KIND: dict[InstructionKind, PartKind] = {
    kind: part for part, kinds in INSTRUCTIONS.items() for kind in kinds
}
_PIPES: dict[str, tuple[InstructionKind, ...]] = {
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": ("alu",),
    "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": ("fp64",),
    XU: ("special", "convert"),
    TENSOR: MATRIX,
}
"""Kinds of instructions by the counter of their pipe."""
USUAL = 0.88
"""Share of a unit's nominal peak that good kernels usually reach."""
_DECIDES = 0.9
"""Share of a throughput from which one unit determines it."""
_SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_SHARED_THROUGHPUT = f"{_SHARED_WAVEFRONTS}.pct_of_peak_sustained_elapsed"
_BANK_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_ATOMIC_THROUGHPUT = "lts__d_atomic_input_cycles_active.max.pct_of_peak_sustained_elapsed"
_ACTIVE_LANES = "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
_SM_CYCLES = ("sm__cycles_active.avg", "sm__cycles_elapsed.avg")
METRICS = (
    *(SM_THROUGHPUT, MEMORY_THROUGHPUT, DRAM_THROUGHPUT, DRAM_READ, DRAM_WRITTEN, ISSUE_ACTIVE),
    *(*_PIPES, _SHARED_WAVEFRONTS, _SHARED_THROUGHPUT, _BANK_CONFLICTS, _ATOMIC_THROUGHPUT, _ACTIVE_LANES),
    *(*_SM_CYCLES, LOADED_BYTES_USED, STORED_BYTES_USED),
    *(
        f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum"
        for space in ("global", "local")
        for op in ("ld", "st")
    ),
    *(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum" for operation in ("ld", "st")),
    *(stall_metric(reason) for reasons in WAITING.values() for reason in reasons),
)
"""The counters that the account needs."""


def call_parts(profile: Profile) -> tuple[Parts, float]:
    """The parts of a call outside its kernels, and the time of all kernels, in milliseconds."""
    time = profile.time_ms
    timeline = profile.timeline
    copies = sum(copy.microseconds for copy in timeline.copies) / 1e3 if timeline else 0.0
    kernels = sum(kernel.microseconds for kernel in profile.kernels) / 1e3
    busy = min(time, timeline.busy_us / 1e3 if timeline else kernels + copies)
    device = kernels + copies
    parts: Parts = defaultdict(float)
    parts["copies"] = busy * copies / device if device else 0.0
    parts["gaps"] = min(time - busy, timeline.gaps_us / 1e3 if timeline else 0.0)
    parts["host"] = max(0.0, time - busy - parts["gaps"])
    return parts, busy * kernels / device if device else 0.0


def kernel_parts(profile: Profile, kernel: Kernel, ms: float, floor_ms: float, attainable: float) -> Parts:
    """The parts of one kernel that takes `ms` of a call, `floor_ms` of it unavoidable."""
    metrics = kernel.metrics
    parts: Parts = defaultdict(float)
    level = parts["floor"] = min(ms, floor_ms)
    if SM_THROUGHPUT not in metrics:
        parts["not_counted"] = ms - level
        return parts
    dram = min(ms, _dram_ms(profile, kernel, ms, attainable))
    if dram > level:
        parts["dram_traffic"] = dram - level
        level = dram
    on_chip = min(ms, ms * metrics.get(MEMORY_THROUGHPUT, 0.0) / 100 / attainable)
    sm = min(ms, ms * metrics[SM_THROUGHPUT] / 100 / attainable)
    both = max(0.0, min(on_chip, sm) - level)
    _add(parts, max(0.0, on_chip - level) - both / 2, _memory_shares(kernel))
    _add(parts, max(0.0, sm - level) - both / 2, _instruction_shares(profile, kernel))
    level = max(level, on_chip, sm)
    parts["idle_sms"] = min(ms - level, ms * _idle_share(kernel))
    _add(parts, ms - level - parts["idle_sms"], _waiting_shares(kernel))
    return parts


def _add(parts: Parts, ms: float, shares: Mapping[PartKind, float]) -> None:
    total = sum(shares.values())
    for kind, share in shares.items():
        parts[kind] += ms * share / total


def _dram_ms(profile: Profile, kernel: Kernel, ms: float, attainable: float) -> float:
    """Time of the bytes that the kernel moved, at the bandwidth of a copy; else from the utilization."""
    metrics = kernel.metrics
    if DRAM_READ in metrics and profile.ceilings.bandwidth:
        nbytes = (metrics[DRAM_READ] + metrics.get(DRAM_WRITTEN, 0.0)) * max(1.0, kernel.launches)
        return 1e3 * nbytes / profile.ceilings.bandwidth * USUAL / attainable
    return ms * metrics.get(DRAM_THROUGHPUT, 0.0) / 100 / attainable


def _memory_shares(kernel: Kernel) -> dict[PartKind, float]:
    """What keeps the on-chip memory busy: shares by part, which add up to 1."""
    metrics = kernel.metrics
    limit = _DECIDES * metrics.get(MEMORY_THROUGHPUT, 0.0)
    if metrics.get(_SHARED_THROUGHPUT, 0.0) >= limit > 0:
        wavefronts = max(1.0, metrics.get(_SHARED_WAVEFRONTS, 0.0))
        conflicts = min(1.0, metrics.get(_BANK_CONFLICTS, 0.0) / wavefronts)
        return {"bank_conflicts": conflicts, "shared_memory": 1 - conflicts}
    if metrics.get(_ATOMIC_THROUGHPUT, 0.0) >= limit > 0:
        return {"atomics": 1.0}
    requests = {
        space: sum(
            metrics.get(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{operation}.sum", 0.0)
            for operation in ("ld", "st")
        )
        for space in ("global", "local")
    }
    spilled = requests["local"] / max(1.0, sum(requests.values()))
    wasted = (1 - spilled) * _wasted_sectors(metrics)
    return {"spills": spilled, "wasted_sectors": wasted, "cache_traffic": 1 - spilled - wasted}


def _wasted_sectors(metrics: Mapping[str, float]) -> float:
    """Share of the sectors between L1 and L2 that coalesced accesses would not need.

    A broadcast wastes nothing: a request takes at least one sector.
    """
    wasted = total = 0.0
    for operation, used in (("ld", LOADED_BYTES_USED), ("st", STORED_BYTES_USED)):
        sectors = metrics.get(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{operation}.sum", 0.0)
        requests = metrics.get(f"l1tex__t_requests_pipe_lsu_mem_global_op_{operation}.sum", 0.0)
        total += sectors
        if metrics.get(used, 0.0) > 0:
            wasted += max(0.0, sectors - max(requests, sectors * metrics[used] / SECTOR))
    return wasted / total if total else 0.0


def _instruction_shares(profile: Profile, kernel: Kernel) -> dict[PartKind, float]:
    """What keeps the SM busy: the instructions of its busiest pipe, or all of the hot code, by kind."""
    metrics = kernel.metrics
    mix = hot_code_of(kernel.code).mix if kernel.code and kernel.code.mix else {}
    busiest = max(_PIPES, key=lambda name: metrics.get(name, 0.0))
    utilization = max(metrics[SM_THROUGHPUT], metrics.get(ISSUE_ACTIVE, 0.0))
    if metrics.get(busiest, 0.0) >= _DECIDES * utilization:
        kinds = _PIPES[busiest]
        return _by_part({kind: mix.get(kind, 0.0) for kind in kinds}) or {_PART_OF_KIND[kinds[0]]: 1.0}
    inactive = 1 - min(1.0, metrics.get(_ACTIVE_LANES, 32.0) / profile.device.warp_size)
    shares = _by_part(mix) or {"instructions": 1.0}
    return {kind: (1 - inactive) * share for kind, share in shares.items()} | {"inactive_lanes": inactive}


def _by_part(mix: Mapping[InstructionKind, float]) -> dict[PartKind, float]:
    parts: Parts = defaultdict(float)
    for kind, count in mix.items():
        parts[_PART_OF_KIND.get(kind, "instructions")] += count
    total = sum(parts.values())
    return {part: count / total for part, count in parts.items() if count} if total else {}


def _idle_share(kernel: Kernel) -> float:
    """Share of the kernel's time in which an SM has no work, on average."""
    active, elapsed = (kernel.metrics.get(name, 0.0) for name in _SM_CYCLES)
    return max(0.0, 1 - active / elapsed) if elapsed else 0.0


def _waiting_shares(kernel: Kernel) -> dict[PartKind, float]:
    """What warps wait for, by part. Warps that issue or are eligible to issue do not wait."""
    stalled: dict[PartKind, float] = {
        part: sum(kernel.metrics.get(stall_metric(reason), 0.0) for reason in reasons)
        for part, reasons in WAITING.items()
    }
    return {part: share for part, share in stalled.items() if share} or {"waiting": 1.0}


def part_lines(kernel: Kernel, part: PartKind, limit: int = 2) -> tuple[str, ...]:
    """Source lines that cause a part: by stall samples, else the first instruction of its kinds."""
    weights: dict[str, float] = defaultdict(float)
    for line in kernel.lines:
        if line.where and (reasons := WAITING.get(part)):
            weights[line.where] += line.share * sum(line.stalls.get(reason, 0.0) for reason in reasons)
    if sampled := sorted(
        (where for where in weights if weights[where] > 0), key=lambda where: -weights[where]
    ):
        return tuple(sampled[:limit])
    where = kernel.code.where if kernel.code else {}
    lines = (where.get(kind, "") for kind in _KINDS_TO_BLAME.get(part, INSTRUCTIONS.get(part, ())))
    return tuple(dict.fromkeys(filter(None, lines)))[:limit]


_LOADS: tuple[InstructionKind, ...] = ("global_load", "global_store")
_SHARED: tuple[InstructionKind, ...] = ("shared_load", "shared_store")
_KINDS_TO_BLAME: dict[PartKind, tuple[InstructionKind, ...]] = {
    **dict.fromkeys(("dram_traffic", "cache_traffic", "wasted_sectors"), _LOADS),
    **dict.fromkeys(("waiting_for_memory", "waiting_for_memory_queue"), _LOADS),
    **dict.fromkeys(("shared_memory", "bank_conflicts", "waiting_for_shared_memory"), _SHARED),
    "waiting_at_barriers": ("barrier",),
    "waiting_at_fences": ("membar",),
    "waiting_for_stores": ("global_store",),
}
