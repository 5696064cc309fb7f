"""Missing data reuse: values are loaded again for each use instead of staying in shared memory.

Two kinds of work have such reuse: matrix products (each value is used in a whole row or column of
results), and sliding windows such as stencils, pooling and filters (each value is used by its neighbors).
"""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    FROM_CODE,
    KERNEL_BOUNDS,
    LOADED_BYTES_USED,
    MEMORY_THROUGHPUT,
    SECTOR,
    SM_THROUGHPUT,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.hot_code import MATRIX, HotCode
from kernelpro.diagnose.pipes import hot_code, time_saved
from kernelpro.diagnose.traffic import L1_LOADED, L2_READ, required_bytes
from kernelpro.records import Evidence, InstructionKind

INTENSITY = 20.0
"""Operations per byte of the task from which a matrix product has enough reuse to tile for."""
TOO_MUCH = 0.2
"""Loaded bytes per operation. Square tiles of edge T with 4-byte elements load 4/T bytes: this is an edge of
20. Untiled kernels load 2 and more."""
GOOD = 4 / 64
"""Loaded bytes per operation with tiles of edge 64."""
ATTAINABLE = 0.6
"""Share of the rate of library products that a first tiled version reaches."""
_UNPROVEN_GAIN = 0.3
"""Saved share that is claimed where no counter shows how often values are loaded."""

SMALL_EDGE, MIN_FASTER = 48, 1.5
"""Edge of a block's tile up to which operand loads limit the rate, and the smallest gain of larger tiles that
is reported."""
_DOMINANT = 0.7
"""Share of the device time from which a kernel is assumed to compute the whole product."""
REPEATED = 8.0
"""Loads per byte: the smallest window, 3 x 3, has 9; several passes over a row, and biases, stay below 5."""
_L2_SHARE = 0.5
"""Share of these loads that may reach L2: with more, neighbors in a block do not share the data."""
_STRIP = 8
"""Adjacent results that one thread can compute from a window kept in registers."""
_STAGED: tuple[InstructionKind, ...] = ("shared_load", "tma", "async_copy", *MATRIX)
_STALLS = ("long_scoreboard", "lg_throttle")


def _analyze(context: DiagnosticContext) -> Match | None:
    if any(other.share > context.kernel.share for other in context.profile.kernels):
        return None
    flops = context.work.matrix_flops
    if flops / required_bytes(context) >= INTENSITY:
        untiled = _product(context, flops) if context.has_counters else _product_from_code(context)
        return untiled or _small_tiles(context, flops)
    return _window(context) if context.kernel.code else None


def _product(context: DiagnosticContext, flops: float) -> Match | None:
    kernel, rates = context.kernel, context.profile.ceilings.rates
    loaded = context.metric(L1_LOADED) * SECTOR * context.launches / flops
    if loaded < TOO_MUCH:
        return None
    weight = context.memory_share
    rate = rates.get(context.profile.matrix_unit) or rates.get("fp32")
    remaining = 0.0
    if rate and kernel.microseconds:
        remaining = flops / (rate * ATTAINABLE) / (1e-6 * kernel.microseconds)
    return Match(
        evidence=(
            Evidence("bytes loaded from L1 per operation", round(loaded, 2), TOO_MUCH, "B"),
            Evidence("operations per byte of the task", round(flops / required_bytes(context)), INTENSITY),
            Evidence("memory throughput", round(context.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        cause=f"the kernel loads {loaded:.1f} bytes per operation, where 64 x 64 tiles would load "
        f"{GOOD:.2f}: values are loaded again for each use",
        saved_share=min((1 - GOOD / loaded) * weight, max(0.0, 1 - remaining)),
        basis=f"tiling removes {1 - GOOD / loaded:.0%} of the loads, which take {weight:.0%} of the time, "
        "until arithmetic becomes the bottleneck",
        where=_load_line(context),
    )


def _small_tiles(context: DiagnosticContext, flops: float) -> Match | None:
    """Blocks that compute small tiles on tensor cores: operands are loaded once per tile."""
    kernel, rates = context.kernel, context.profile.ceilings.rates
    if kernel.code is None or not kernel.code.count(*MATRIX):
        return None
    unit = context.profile.matrix_unit
    rate = rates.get(unit)
    if not kernel.grid or not rate or not kernel.microseconds or kernel.share < _DOMINANT:
        return None
    results = context.work.written_bytes / (2 if unit in ("bf16", "fp16") else 4)
    edge = math.sqrt(results / math.prod(kernel.grid))
    remaining = flops / (rate * ATTAINABLE) / (1e-6 * kernel.microseconds * context.launches)
    if edge > SMALL_EDGE or remaining > 1 / MIN_FASTER:
        return None
    return Match(
        evidence=(
            Evidence("results per block, as the edge of a square", round(edge), SMALL_EDGE),
            Evidence("rate over that of library products", round(remaining * ATTAINABLE, 2), ATTAINABLE),
            Evidence("blocks", math.prod(kernel.grid)),
        ),
        cause=f"each block computes only {edge:.0f} x {edge:.0f} results: each tile loads its operands "
        "again, and a loaded byte serves few operations",
        saved_share=1 - remaining,
        basis=f"larger tiles reach {ATTAINABLE:.0%} of the rate of library products",
        where=_load_line(context),
        advice=(
            "compute 128 x 128 results per block (64 x 64 at least), each warpgroup 64 rows",
            "keep the tile's accumulators in registers, and stage operands in several buffers in shared "
            "memory",
        ),
    )


def _product_from_code(context: DiagnosticContext) -> Match | None:
    """An innermost loop that loads from global memory for every product, without tiles."""
    loops = [loop for loop in context.code.innermost_loops if loop.count("fma32")]
    worst = max(loops, key=lambda loop: loop.count("fma32"), default=None)
    if worst is None or context.code.count(*_STAGED):
        return None
    widths = worst.widths.get("global_load", {})
    loaded = sum(int(bits) / 8 * count for bits, count in widths.items()) / (2 * worst.count("fma32"))
    if loaded < 2 * TOO_MUCH:
        return None
    return Match(
        evidence=(
            Evidence("bytes loaded per operation in the innermost loop", round(loaded, 2), 2 * TOO_MUCH, "B"),
        ),
        cause=f"the innermost loop loads {loaded:.1f} bytes from global memory per operation, and no tile is "
        f"kept in shared memory{FROM_CODE}",
        saved_share=_UNPROVEN_GAIN,
        basis="an estimate from the machine code, without counters",
        where=worst.where or _load_line(context),
    )


def _window(context: DiagnosticContext) -> Match | None:
    """Threads load the whole window of each result: repeated loads, by counters or else by the code."""
    hot = hot_code(context)
    if hot.count(*_STAGED):
        return None
    counted = context.has_counters
    repeats = _loads_per_byte(context) if counted else _loads_per_byte_from_code(context, hot)
    if repeats < REPEATED:
        return None
    side = math.sqrt(repeats)
    remaining = (side + _STRIP - 1) / (_STRIP * side)
    addresses = max(0.0, hot.count("alu") - hot.count("fma32", "half"))
    removed: dict[InstructionKind, float] = {
        "global_load": (1 - remaining) * hot.count("global_load"),
        "alu": (1 - remaining) * addresses,
    }
    evidence = [
        Evidence("loads per byte", round(repeats, 1), REPEATED),
        Evidence("loads in the hot code", hot.count("global_load")),
    ]
    if counted:
        compute, memory = context.metric(SM_THROUGHPUT), context.metric(MEMORY_THROUGHPUT)
        # The utilization of L1 shrinks with the loads; that of DRAM does not.
        pipes = compute * hot.clocks(removed=removed) / hot.clocks()
        after = max(context.metric(DRAM_THROUGHPUT), memory * remaining, pipes)
        saved = 1 - after / max(compute, memory)
        evidence.append(Evidence("utilization of the busiest unit", round(max(compute, memory)), None, "%"))
    else:
        saved = time_saved(context, hot, removed) if context.headroom >= 1.5 else 0.0
    return Match(
        evidence=tuple(evidence),
        cause=f"each byte is loaded {repeats:.0f} times: threads load their whole window, although neighbors "
        f"share most of it{'' if counted else FROM_CODE}",
        saved_share=saved,
        basis=f"{_STRIP} adjacent results from a window in registers need {remaining:.0%} of the loads and "
        "of their address arithmetic",
        where=_load_line(context),
        advice=(
            f"let a thread compute {_STRIP} adjacent results and slide the window through registers: they "
            "share their loads",
            "split a separable window (maximum, sum, Gaussian) into a pass along rows and one along columns, "
            "in one kernel",
            "stage the block's tile with its halo in shared memory, so that addresses cost one addition",
        ),
    )


def _load_line(context: DiagnosticContext) -> str:
    return context.hottest_line(*_STALLS) or context.line_of("global_load")


def _loads_per_byte(context: DiagnosticContext) -> float:
    """How often a launch loads each byte, by counters; 0 if most of these loads reach L2.

    A lookup table needs a load for each written byte, so the larger of the read and written bytes counts.
    """
    least = max(context.work.read_bytes, context.work.written_bytes)
    if least <= 0:
        raise MissingData("the bytes of the task")
    loads = context.metric(L1_LOADED) * context.metric(LOADED_BYTES_USED) / least
    return loads if context.metric(L2_READ) * SECTOR / least <= _L2_SHARE * loads else 0.0


def _loads_per_byte_from_code(context: DiagnosticContext, hot: HotCode) -> float:
    """Loaded over stored bytes of the hot code, relative to the task's; 0 if the hot code stores nothing."""
    work, stored = context.work, hot.bytes_moved("global_store")
    if not stored or not work.written_bytes:
        return 0.0
    return hot.bytes_moved("global_load") / stored / max(1.0, work.read_bytes / work.written_bytes)


DIAGNOSTIC = Diagnostic(
    name="missing_reuse",
    level="kernel",
    target="cuda",
    analyze=_analyze,
    trigger=f"a task with {INTENSITY:g} matrix operations per byte or more, whose longest kernel loads "
    f"{TOO_MUCH} bytes or more from L1 per operation, or computes, on tensor cores, tiles of at most "
    f"{SMALL_EDGE} x {SMALL_EDGE} results at less than {ATTAINABLE / MIN_FASTER:.0%} of the library's rate; "
    "without counters: an innermost loop that loads from global memory for each product, without tiles. Or, "
    "in a task with fewer products, each byte is loaded "
    f"{REPEATED:g} times or more, mostly from L1, and nothing is staged",
    remedy="tiles in shared memory and registers; tensor cores; windows that slide through registers",
    gain_basis="the share of loads that 64 x 64 tiles would not need, times the share of the time that "
    "memory takes, until arithmetic becomes the bottleneck; for windows, the loads and addresses that "
    f"strips of {_STRIP} results share",
    advice=(
        "tile: stage 64 to 128 rows and columns of the operands in shared memory per block, and reuse them",
        "compute a register tile of results per thread (or per tensor-core instruction), 8 x 8 or more",
        "in Triton use tl.dot on blocks; in CUDA use the tensor cores where the precision allows",
    ),
    bounds=KERNEL_BOUNDS,
    metrics=(L1_LOADED, L2_READ, LOADED_BYTES_USED, *stall_metrics(*_STALLS)),
    claims=(
        "cache_traffic",
        "wasted_sectors",
        "memory_instructions",
        "integer_instructions",
        "waiting_for_memory",
        "waiting_for_memory_queue",
    ),
)
