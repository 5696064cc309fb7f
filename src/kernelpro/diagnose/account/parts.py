"""Texts for the parts of a time account: what each is, how it may be wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelpro.records import AccountPart, PartKind, Target

_MIN_SHARE, _MAX_ROWS, _MAX_PLACES = 0.03, 8, 2
"""Limits of a summary: the smallest share with a row of its own, the rows, the source lines per row."""


@dataclass(frozen=True)
class PartText:
    """The texts for one kind of part."""

    title: str
    doubt: str
    """How the figure may be wrong."""
    advice: tuple[str, ...] = ()
    """What usually removes it; best first."""
    cpu_advice: tuple[str, ...] = ()
    """The advice on a CPU, where it differs."""
    targets: tuple[Target, ...] = ("cuda",)
    """The targets whose accounts have this part."""

    def advice_for(self, target: str) -> tuple[str, ...]:
        """What usually removes it on this kind of device; best first."""
        return self.cpu_advice or self.advice if target == "cpu" else self.advice


_UTILIZATION = "assumes that good kernels reach 80 to 95 % of the unit's peak"
_MIX = "counts the instructions of the hot code, each as one issue slot"
_STALLS = "divides the waiting time by stall reason; removing one reason can expose another"
_SAMPLES = "estimated from samples of the program counter"
_OVERLAP = (
    "keep more loads in flight: several independent 16-byte loads per thread before the first use",
    "overlap loads with the work on the data before them: double buffering, cp.async, TMA",
    "raise occupancy: fewer registers or less shared memory per block",
)

_CPU: tuple[Target, ...] = ("cpu",)
_BOTH: tuple[Target, ...] = ("cuda", "cpu")

PARTS: dict[PartKind, PartText] = {
    "floor": PartText(
        "the floor",
        "follows from the measured ceilings of the device, known to a few percent",
        targets=_BOTH,
    ),
    "host": PartText(
        "host: Python, launches, synchronization",
        "on a GPU, idle time before and after a call's kernels; other load on the host adds to it",
        ("make fewer launches: fuse kernels, or capture them in a CUDA graph",),
        ("do less in Python in forward: call native code once, and prepare parameters in the constructor",),
        targets=_BOTH,
    ),
    "gaps": PartText(
        "device idle between kernels",
        "tracing can stretch gaps; they are limited to the idle time of an untraced call",
        ("fuse neighboring kernels", "capture the call in a CUDA graph"),
    ),
    "copies": PartText(
        "copies and memsets",
        "measured under tracing",
        ("leave data where it is: no copies between host and device, and no clones",),
    ),
    "dram_traffic": PartText(
        "DRAM traffic beyond the task's minimum",
        "can include cache write-backs of earlier work",
        ("move each byte once: fuse passes, keep tiles on chip, use full sectors",),
    ),
    "cache_traffic": PartText(
        "traffic through L1 and L2",
        _UTILIZATION,
        (
            "load each value once into registers or shared memory and reuse it there",
            "use larger tiles per block, and 16-byte accesses",
        ),
    ),
    "wasted_sectors": PartText(
        "unused bytes of fetched sectors",
        _UTILIZATION,
        ("let neighboring threads access neighboring addresses; transpose through shared memory",),
    ),
    "shared_memory": PartText(
        "shared memory accesses",
        _UTILIZATION,
        (
            "exchange through shuffles and registers instead of shared memory",
            "use 16-byte shared memory accesses, and let each thread work on more values per access",
        ),
    ),
    "bank_conflicts": PartText(
        "shared memory bank conflicts",
        _UTILIZATION,
        ("pad rows of shared memory by one element, or swizzle the index",),
    ),
    "atomics": PartText(
        "atomic operations",
        _UTILIZATION,
        ("reduce within the warp and block first, then one atomic per block",),
    ),
    "spills": PartText(
        "register spills",
        _UTILIZATION,
        ("keep fewer live values per thread: smaller tiles, __launch_bounds__, less unrolling",),
    ),
    "integer_instructions": PartText(
        "integer and address instructions",
        _MIX,
        (
            "let each thread handle 16 contiguous bytes per access, which share one address and one bounds "
            "check",
            "take rows and columns from the grid, hoist loop-invariant terms, use 32-bit indices",
        ),
    ),
    "conversions": PartText("type conversions", _MIX, ("convert each value once, in packed pairs",)),
    "special_functions": PartText(
        "special functions (exp, log, sin, rsqrt, division)",
        _MIX,
        ("compute fewer of them: one exponential per element, multiply by a reciprocal",),
    ),
    "arithmetic": PartText(
        "floating-point arithmetic beyond the floor",
        f"{_MIX}; the floor counts one operation per output element of an operator",
        ("compute each value once; replace a long polynomial or a loop by a cheaper form",),
    ),
    "double_precision": PartText(
        "double precision",
        f"on a GPU, {_MIX}; on a CPU, {_SAMPLES}",
        ("use float literals (1.0f) and float functions (expf)",),
        targets=_BOTH,
    ),
    "matrix_instructions": PartText(
        "matrix instructions below the tensor cores' best rate",
        _UTILIZATION,
        ("use the fastest matrix instruction of the device (wgmma, tcgen05) and larger tiles",),
    ),
    "memory_instructions": PartText(
        "load and store instructions",
        _MIX,
        ("use 16-byte accesses: a quarter of the instructions of 4-byte ones",),
    ),
    "exchange": PartText(
        "exchange between threads (shuffles, shared memory)",
        _MIX,
        ("let each thread reduce its own values first, then exchange once per warp",),
    ),
    "synchronization": PartText(
        "barrier and fence instructions",
        _MIX,
        ("reduce within a warp with shuffles: one barrier for the block instead of one per level",),
    ),
    "control_flow": PartText("branches and calls", _MIX, ("unroll short loops; remove tests from them",)),
    "inactive_lanes": PartText(
        "inactive lanes (divergence, predication)",
        "counts the inactive lanes of all instructions",
        ("give all 32 lanes of a warp the same path and a share of the work",),
    ),
    "instructions": PartText(
        "other instructions",
        "the kernel was not disassembled, or its instructions belong to no kind",
    ),
    "idle_sms": PartText(
        "idle SMs",
        "an average over the SMs and the kernel's time",
        ("start more, smaller blocks, or a persistent grid that divides the work evenly",),
    ),
    "waiting_for_memory": PartText("warps wait for global memory (long scoreboard)", _STALLS, _OVERLAP),
    "waiting_for_memory_queue": PartText(
        "warps wait for the global memory queue (LG throttle)",
        _STALLS,
        ("use fewer, wider accesses",),
    ),
    "waiting_for_shared_memory": PartText(
        "warps wait for shared memory, shuffles, special functions (short scoreboard, MIO)",
        _STALLS,
        ("exchange less often, and interleave independent rows",),
    ),
    "waiting_at_barriers": PartText(
        "warps wait at barriers",
        _STALLS,
        (
            "let more than one block share an SM, or split the block into independent warps, so that others "
            "work meanwhile",
            "do more work between barriers: larger steps, double buffering, named barriers",
        ),
    ),
    "waiting_at_fences": PartText(
        "warps wait at memory fences (membar)", _STALLS, ("use fewer or weaker fences",)
    ),
    "waiting_for_pipes": PartText(
        "warps wait for a busy math pipe (math pipe throttle)",
        _STALLS,
        ("interleave instructions of different pipes",),
    ),
    "waiting_for_results": PartText(
        "warps wait for fixed-latency dependencies (wait)",
        _STALLS,
        ("give each thread several independent dependency chains: unroll, more accumulators",),
    ),
    "waiting_for_instructions": PartText(
        "warps wait for instruction fetch (no instruction)",
        _STALLS,
        ("unroll less, so that the hot loop fits the instruction cache",),
    ),
    "waiting_for_stores": PartText("warps wait for their last stores (drain)", _STALLS, ("store earlier",)),
    "waiting": PartText("warps wait", "no stall reasons were counted", _OVERLAP),
    "not_counted": PartText(
        "above the floor, without counters",
        "no hardware counters were collected for the kernel",
        ("profile with counters (ncu) to see where the time goes",),
    ),
    "torch_operators": PartText(
        "torch operators",
        _SAMPLES,
        ("write them as part of your own loop: one pass over the data",),
        targets=_CPU,
    ),
    "operating_system": PartText(
        "the operating system: page faults",
        "system time as a share of the CPU time of the calls",
        ("allocate buffers once and reuse them",),
        targets=_CPU,
    ),
    "idle_cores": PartText(
        "idle cores",
        "compares the busiest thread's work with that of all threads",
        ("parallelize the outer loop with OpenMP, in equal parts",),
        targets=_CPU,
    ),
    "thread_coordination": PartText(
        "OpenMP overhead: starting threads, waiting, locks",
        "time in the OpenMP runtime, or all time beyond that of one thread alone, divided among the "
        "threads; other load on the machine adds to it",
        ("enter one parallel region around all loops, with few large pieces of work",),
        targets=_CPU,
    ),
    "math_functions": PartText(
        "scalar calls of libm",
        _SAMPLES,
        ("use a vectorized inline implementation",),
        targets=_CPU,
    ),
    "scalar_code": PartText(
        "scalar loops",
        _SAMPLES,
        ("let the compiler vectorize: contiguous accesses, __restrict, `#pragma omp simd`",),
        targets=_CPU,
    ),
    "strided_access": PartText(
        "loops with strided accesses",
        _SAMPLES,
        ("swap the loops, so that the inner one reads contiguous memory; else block the loops",),
        targets=_CPU,
    ),
    "indirect_access": PartText(
        "loops that access memory through an index table",
        _SAMPLES,
        ("reorder the data once, so that the inner loop is contiguous",),
        targets=_CPU,
    ),
    "divisions": PartText(
        "loops with integer divisions", _SAMPLES, ("divide outside the loop",), targets=_CPU
    ),
    "dependency_chains": PartText(
        "chains of dependent additions",
        _SAMPLES,
        ("sum into several independent accumulators",),
        targets=_CPU,
    ),
    "vector_code": PartText(
        "vector loops, beyond the floor",
        f"{_SAMPLES}; arithmetic and cache misses cannot be distinguished",
        (
            "do less arithmetic per element, or pass over the data fewer times",
            "prefetch, and keep several independent rows in flight",
        ),
        targets=_CPU,
    ),
    "native_code": PartText(
        "other native code, with its copies and allocations",
        _SAMPLES,
        ("allocate buffers once, and write results where they are needed instead of copying them",),
        targets=_CPU,
    ),
}
"""By kind of part."""


@dataclass(frozen=True)
class SummaryRow:
    """All parts of one kind; `part` is None for the sum of the small ones."""

    part: PartKind | None
    title: str
    ms: float
    lines: tuple[str, ...] = ()


def summarize(parts: Sequence[AccountPart]) -> list[SummaryRow]:
    """The account by kind of part: the floor first, then by size, small ones together at the end."""
    total = sum(part.ms for part in parts)
    rows = []
    for kind in dict.fromkeys(part.part for part in parts):
        same = [part for part in parts if part.part == kind]
        lines = tuple(dict.fromkeys(line for part in same for line in part.lines))[:_MAX_PLACES]
        rows.append(SummaryRow(kind, PARTS[kind].title, sum(part.ms for part in same), lines))
    rows.sort(key=lambda row: (row.part != "floor", -row.ms))
    large = [row for row in rows if row.ms >= _MIN_SHARE * total][: _MAX_ROWS - 1]
    rest = total - sum(row.ms for row in large)
    return [*large, SummaryRow(None, "smaller parts", rest)] if rest > 0.005 * total else large
