"""Work that could use each value many times loads it again for each use: no tiles in shared memory or registers."""

from __future__ import annotations

from kernelpro.diagnose.counters import MEMORY, RUNNING, counted, hot_line, pressure, stalls
from kernelpro.diagnose.tool import Found, Scene, Tool
from kernelpro.diagnose.traffic import L1_LOADED, SECTOR, fewest_bytes
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


def look(scene: Scene) -> Found | None:
    work, kernel = scene.profile.work, scene.it
    flops = work.get("matrix_flops", 0.0)
    leading = all(kernel.share >= other.share for other in scene.profile.kernels)
    if flops / fewest_bytes(scene) < INTENSITY or not leading:
        return None
    return _counted(scene, flops) if counted(scene) else _static(scene)


def _counted(scene: Scene, flops: float) -> Found | None:
    kernel = scene.it
    loaded = scene.metric(L1_LOADED) * SECTOR * max(1.0, kernel.launches) / flops
    if loaded < TOO_MUCH:
        return None
    weight = pressure(scene)
    rates = scene.profile.ceilings.get("rates", {})
    rate = rates.get("bf16" if scene.profile.precision == "native" else scene.profile.precision) or rates.get("fp32")
    left = flops / (rate * ATTAINABLE) / (1e-6 * kernel.microseconds) if rate and kernel.microseconds else 0.0
    saved = min((1 - GOOD / loaded) * weight, max(0.0, 1 - left))
    return _found(
        scene,
        (
            Evidence("bytes loaded from L1 for each operation", round(loaded, 2), TOO_MUCH, "B"),
            Evidence("operations for each byte of the task", round(flops / fewest_bytes(scene)), INTENSITY),
            Evidence("use of the memory system", round(scene.metric(MEMORY)), None, "%"),
        ),
        f"the kernel loads {loaded:.1f} bytes for each operation, where tiles of 64 x 64 would load {GOOD:.2f}: values are fetched "
        "again for each use instead of being kept",
        saved,
        f"tiling takes away {1 - GOOD / loaded:.0%} of the loads, which set {weight:.0%} of the time, until the arithmetic limits",
    )


def _static(scene: Scene) -> Found | None:
    """Hot code that loads from global memory for every multiplication, and neither stages tiles nor uses matrix units."""
    loops = [loop for loop in scene.code.get("loops", ()) if loop.get("innermost") and loop["mix"].get("fma32", 0)]
    staged = scene.mix("shared_load", "hmma", "hgmma", "imma", "dmma", "tma", "async_copy", hot=False)
    worst = max(loops, key=lambda loop: loop["mix"]["fma32"], default=None)
    if worst is None or staged:
        return None
    widths = worst.get("widths", {}).get("global_load", {})
    loaded = sum(int(bits) / 8 * count for bits, count in widths.items()) / (2 * worst["mix"]["fma32"])
    if loaded < 2 * TOO_MUCH:
        return None
    return _found(
        scene,
        (Evidence("bytes loaded in the innermost loop for each operation", round(loaded, 2), 2 * TOO_MUCH, "B"),),
        f"the innermost loop loads {loaded:.1f} bytes from global memory for each operation and no tile is kept in shared memory "
        "(seen in the machine code; counters were not available)",
        _GUESS,
        "a guess from the machine code, without counters",
        worst.get("where", ""),
    )


def _found(scene: Scene, evidence: tuple[Evidence, ...], cause: str, saved: float, how: str, where: str = "") -> Found:
    return Found(
        evidence=evidence,
        cause=cause,
        advice=(
            "work in tiles: a block stages 64 to 128 rows and columns of the operands in shared memory, and uses them so often",
            "let each thread (or each matrix instruction) compute a tile of results in registers, 8 x 8 or more",
            "in Triton, use tl.dot on blocks; in CUDA, feed the tensor cores where the precision allows it",
        ),
        saved=saved,
        how=how,
        where=where
        or hot_line(scene.it, "long_scoreboard", "lg_throttle")
        or scene.it.code.get("where", {}).get("global_load", ""),
    )


TOOL = Tool(
    name="missing_reuse",
    level="kernel",
    target="cuda",
    look=look,
    trigger=f"a task with {INTENSITY:g} matrix operations a byte or more, whose largest kernel loads {TOO_MUCH} bytes or more from "
    "L1 for each operation; without counters: an innermost loop that loads from global memory for each product, and no tiles",
    remedy="tiles in shared memory and registers; matrix instructions",
    expects="the share of loads that tiles of 64 would not need, times how far memory sets the time, until the arithmetic limits",
    affinity=RUNNING,
    metrics=(L1_LOADED, *stalls("long_scoreboard", "lg_throttle")),
    symptom_of=("uncoalesced_access",),
)
