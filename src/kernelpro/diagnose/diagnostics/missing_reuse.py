"""Work that could use each value many times loads it again for each use: no tiles in shared memory or registers.

Two kinds of work have such reuse: products of matrices (each value is used in a whole row or column of results), and
windows that slide over the data, such as stencils, pooling and filters (each value is used by its neighbours).
"""

from __future__ import annotations

import math

from kernelpro.diagnose.counters import (
    DRAM_THROUGHPUT,
    KERNEL_BOUNDS,
    MEMORY_THROUGHPUT,
    SM_THROUGHPUT,
    has_counters,
    hottest_line,
    memory_share,
    stall_metrics,
)
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData
from kernelpro.diagnose.pipes import MATRIX, HotCode, hot_code, time_saved
from kernelpro.diagnose.traffic import L1_LOADED, L2_READ, LOADED_BYTES_USED, SECTOR, required_bytes
from kernelpro.records import Evidence

INTENSITY = 20.0
"""Operations for each byte of the task, from which a product has reuse worth tiling for."""
TOO_MUCH = 0.2
"""Loaded bytes an operation. Square tiles of edge T in 4-byte elements load 4/T: this is an edge of 20; no tiling is 2 and more."""
GOOD = 4 / 64
"""Tiles of edge 64."""
ATTAINABLE = 0.6
"""Of the rate of library products, what a first tiled version reaches."""
_GUESS = 0.3
"""What may be claimed where no counter shows how often values are loaded."""

REPEATED = 8.0
"""How often each byte is loaded: the smallest window, 3 x 3, takes 9 loads; several passes over a row, and biases, stay below 5."""
_PASSED_ON = 0.5
"""Share of these loads that may go on to L2: with more, it is not the neighbours in a block that ask for the same bytes."""
_STRIP = 8
"""Results in a row that one thread can compute from a window kept in registers."""
_STAGED = ("shared_load", "tma", "async_copy", *MATRIX)


def look(scene: DiagnosticContext) -> Match | None:
    leading = all(scene.kernel.share >= other.share for other in scene.profile.kernels)
    if not leading:
        return None
    flops = scene.profile.work.get("matrix_flops", 0.0)
    if flops / required_bytes(scene) >= INTENSITY:
        return _product(scene, flops) if has_counters(scene) else _product_in_code(scene)
    return _window(scene) if flops == 0 and scene.kernel.code else None


def _product(scene: DiagnosticContext, flops: float) -> Match | None:
    kernel = scene.kernel
    loaded = scene.metric(L1_LOADED) * SECTOR * max(1.0, kernel.launches) / flops
    if loaded < TOO_MUCH:
        return None
    weight = memory_share(scene)
    rates = scene.profile.ceilings.get("rates", {})
    rate = rates.get(scene.profile.matrix_unit) or rates.get("fp32")
    left = flops / (rate * ATTAINABLE) / (1e-6 * kernel.microseconds) if rate and kernel.microseconds else 0.0
    return _found(
        scene,
        (
            Evidence("bytes loaded from L1 for each operation", round(loaded, 2), TOO_MUCH, "B"),
            Evidence("operations for each byte of the task", round(flops / required_bytes(scene)), INTENSITY),
            Evidence("use of the memory system", round(scene.metric(MEMORY_THROUGHPUT)), None, "%"),
        ),
        f"the kernel loads {loaded:.1f} bytes for each operation, where tiles of 64 x 64 would load {GOOD:.2f}: values are fetched "
        "again for each use instead of being kept",
        _TILES,
        min((1 - GOOD / loaded) * weight, max(0.0, 1 - left)),
        f"tiling takes away {1 - GOOD / loaded:.0%} of the loads, which set {weight:.0%} of the time, until the arithmetic limits",
    )


def _product_in_code(scene: DiagnosticContext) -> Match | None:
    """Hot code that loads from global memory for every multiplication, and neither stages tiles nor uses matrix units."""
    loops = [
        loop for loop in scene.code.get("loops", ()) if loop.get("innermost") and loop["mix"].get("fma32", 0)
    ]
    worst = max(loops, key=lambda loop: loop["mix"]["fma32"], default=None)
    if worst is None or scene.count_instructions(*_STAGED, hot=False):
        return None
    widths = worst.get("widths", {}).get("global_load", {})
    loaded = sum(int(bits) / 8 * count for bits, count in widths.items()) / (2 * worst["mix"]["fma32"])
    if loaded < 2 * TOO_MUCH:
        return None
    return _found(
        scene,
        (
            Evidence(
                "bytes loaded in the innermost loop for each operation", round(loaded, 2), 2 * TOO_MUCH, "B"
            ),
        ),
        f"the innermost loop loads {loaded:.1f} bytes from global memory for each operation and no tile is kept in shared memory "
        "(seen in the machine code; counters were not available)",
        _TILES,
        _GUESS,
        "a guess from the machine code, without counters",
        worst.get("where", ""),
    )


def _window(scene: DiagnosticContext) -> Match | None:
    """A thread loads the whole window of its result: by counters, loads that L1 serves again and again; else by the code."""
    hot = hot_code(scene)
    if hot.count(*_STAGED):
        return None
    asked = _asked(scene) if has_counters(scene) else _asked_by_code(scene, hot)
    if asked < REPEATED:
        return None
    side = math.sqrt(asked)
    kept = (side + _STRIP - 1) / (_STRIP * side)
    arithmetic = hot.count("fma32", "half")
    addresses = max(0.0, hot.count("alu") - arithmetic)
    gone = {"global_load": (1 - kept) * hot.count("global_load"), "alu": (1 - kept) * addresses}
    evidence = [
        Evidence("times each byte is loaded", round(asked, 1), REPEATED),
        Evidence("loads in the hot code", hot.count("global_load")),
    ]
    if has_counters(scene):
        compute, memory = scene.metric(SM_THROUGHPUT), scene.metric(MEMORY_THROUGHPUT)
        # L1's work shrinks with the loads; that of DRAM stays.
        then = max(scene.metric(DRAM_THROUGHPUT), memory * kept, compute * hot.clocks(gone=gone) / hot.clocks())
        share = 1 - then / max(compute, memory)
        evidence.append(Evidence("use of the busiest unit", round(max(compute, memory)), None, "%"))
    else:
        share = time_saved(scene, hot, gone) if scene.headroom >= 1.5 else 0.0
    unproven = "" if has_counters(scene) else " (seen in the machine code; counters were not available)"
    return _found(
        scene,
        tuple(evidence),
        f"each byte is loaded {asked:.0f} times: threads fetch their whole window, although neighbours share most of it{unproven}",
        _WINDOWS,
        share,
        f"{_STRIP} results in a row from a window kept in registers need {kept:.0%} of the loads and of their address arithmetic",
    )


def _asked(scene: DiagnosticContext) -> float:
    """How often a launch loads each byte, by counters; 0 where most of that goes on to L2.

    A load for each byte that is written is always needed (tables that are looked up), so the larger of both counts.
    """
    work = scene.profile.work
    least = max(work.get("read_bytes", 0.0), work.get("written_bytes", 0.0))
    if least <= 0:
        raise MissingData("the bytes of the task")
    asked = scene.metric(L1_LOADED) * scene.metric(LOADED_BYTES_USED) / least
    return asked if scene.metric(L2_READ) * SECTOR / least <= _PASSED_ON * asked else 0.0


def _asked_by_code(scene: DiagnosticContext, hot: HotCode) -> float:
    """How often each byte is loaded, where the hot code also stores: bytes loaded for each stored one, against the task's."""
    work, stored = scene.profile.work, hot.bytes_moved("global_store")
    if not stored or not work.get("written_bytes"):
        return 0.0
    return hot.bytes_moved("global_load") / stored / max(1.0, work.get("read_bytes", 0.0) / work["written_bytes"])


_TILES = (
    "work in tiles: a block stages 64 to 128 rows and columns of the operands in shared memory, and uses them so often",
    "let each thread (or each matrix instruction) compute a tile of results in registers, 8 x 8 or more",
    "in Triton, use tl.dot on blocks; in CUDA, feed the tensor cores where the precision allows it",
)
_WINDOWS = (
    f"let a thread compute {_STRIP} results in a row and slide the window through registers: they then share their loads",
    "split a separable window (maximum, sum, Gaussian) into a pass along rows and one along columns, within the kernel",
    "stage the block's tile with its rim in shared memory, so that addresses cost one addition",
)


def _found(
    scene: DiagnosticContext,
    evidence: tuple[Evidence, ...],
    cause: str,
    advice: tuple[str, ...],
    share: float,
    how: str,
    where: str = "",
) -> Match:
    place = (
        where
        or hottest_line(scene.kernel, "long_scoreboard", "lg_throttle")
        or scene.kernel.code.get("where", {}).get("global_load", "")
    )
    return Match(evidence, cause, advice, share, how, place)


DIAGNOSTIC = Diagnostic(
    name="missing_reuse",
    level="kernel",
    target="cuda",
    analyze=look,
    trigger=f"a task with {INTENSITY:g} matrix operations a byte or more, whose largest kernel loads {TOO_MUCH} bytes or more from "
    "L1 for each operation; without counters: an innermost loop that loads from global memory for each product, and no tiles. Or, "
    f"in a task without products, each byte is loaded {REPEATED:g} times or more, mostly from L1, and nothing is staged",
    remedy="tiles in shared memory and registers; matrix instructions; windows that slide through registers",
    gain_basis="the share of loads that tiles of 64 would not need, times how far memory sets the time, until the arithmetic limits; "
    f"for windows, the loads and addresses that strips of {_STRIP} results share",
    bounds=KERNEL_BOUNDS,
    metrics=(L1_LOADED, L2_READ, LOADED_BYTES_USED, *stall_metrics("long_scoreboard", "lg_throttle")),
    symptom_of=("uncoalesced_access",),
)
